"""What `deploy/` says is true: commands, columns, addresses of probes; and no secret in it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from semel.cli.app import app
from semel.envelope import MessageEnvelope
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from semel.wire import WireMessage, decode
from tests.docs.pages import ROOT, blocks
from tests.services import Database

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").iterdir())
PAGE = ROOT / "docs/operations/deployment.md"


def documents(*paths: Path) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from yaml.safe_load_all(path.read_text())


def compose() -> dict[str, Any]:
    [document] = documents(DEPLOY / "compose.yaml")
    return document


def pods() -> Iterator[dict[str, Any]]:
    """The pod specifications of all manifests."""

    def find(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            if "containers" in node:
                yield node
            for child in node.values():
                yield from find(child)

    for document in documents(*MANIFESTS):
        yield from find(document)


def containers() -> list[dict[str, Any]]:
    return [container for pod in pods() for container in pod["containers"]]


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """The sections of a systemd unit; a key may come several times."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every call of `semel` in deploy/ and on the pages about it."""
    for container in containers():
        yield container["name"], container["args"]
    for name, service in compose()["services"].items():
        if service.get("entrypoint") == ["semel"]:
            yield f"compose {name}", service["command"]
    for path in UNITS:
        for line in unit(path).get("Service", {}).get("ExecStart", []):
            program, *words = shlex.split(line)
            assert program.endswith("/semel")
            yield path.name, words
    for block in blocks("console", "sh"):
        if block.page.name in ("deployment.md", "migrations.md", "tenants.md"):
            for line in block.code.splitlines():
                found = re.match(r"(?:\$ )?semel (?P<words>[^|>#]*)", line)
                if found:
                    yield str(block), shlex.split(found["words"])


def test_something_is_looked_at() -> None:
    """The collections are not empty by mistake."""
    assert {"relay", "run", "cleanup", "db"} <= {words[0] for _, words in commands()}
    assert 4 == len(list(pods()))
    assert 4 == len(UNITS)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{where}: {words}") for where, words in commands()]
)
def test_commands_exist(words: list[str]) -> None:
    """Every command, argument and option is parsed as the program itself does it."""
    command: Any = typer.main.get_command(app)
    words = list(words)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(Exception, match="--no-such"):
        test_commands_exist(["cleanup", "--no-such"])


def test_environment_variables_are_read_somewhere() -> None:
    """No SEMEL_ variable is set that nothing reads."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    text = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    for name in set(re.findall(r"\bSEMEL_[A-Z_]+", text + PAGE.read_text())):
        base = name.removesuffix("_FILE")
        assert base in source or base.startswith("SEMEL_OUTBOX_"), name


def test_pods_are_restricted() -> None:
    """Not root, nothing writable, no token, secrets by reference only."""
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert ["ALL"] == security["capabilities"]["drop"]
            assert "memory" in container["resources"]["limits"]
            for variable in container["env"]:
                assert "_URL" not in variable["name"].removesuffix("_URL_FILE"), variable
    assert "Secret" not in {document["kind"] for document in documents(*MANIFESTS)}


def test_workers_have_probes_and_a_budget() -> None:
    """At addresses that the workers serve, with time enough to hand over."""
    everything = list(documents(*MANIFESTS))
    deployments = [document for document in everything if document["kind"] == "Deployment"]
    budgets = [document for document in everything if document["kind"] == "PodDisruptionBudget"]
    assert 2 == len(deployments)
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        where = container["args"][container["args"].index("--http") + 1]
        [port] = container["ports"]
        assert str(port["containerPort"]) == where.rpartition(":")[2]
        assert {"/livez"} == {
            container[kind]["httpGet"]["path"] for kind in ("livenessProbe", "startupProbe")
        }
        assert "/readyz" == container["readinessProbe"]["httpGet"]["path"]
        assert pod["terminationGracePeriodSeconds"] > 30
        labels = deployment["spec"]["selector"]
        assert labels in [budget["spec"]["selector"] for budget in budgets]
        assert labels["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_the_cleanup_is_the_cron_job_of_the_documents() -> None:
    """At night, one at a time, and with a window longer than the horizon."""
    [job] = documents(DEPLOY / "kubernetes/inbox-cleanup-cronjob.yaml")
    assert "CronJob" == job["kind"]
    assert "Forbid" == job["spec"]["concurrencyPolicy"]
    assert re.fullmatch(r"\d+ \d+ \* \* \*", job["spec"]["schedule"])
    assert (
        "7d"
        == unit(DEPLOY / "systemd/semel-cleanup.service")["Service"]["ExecStart"][0].split()[-1]
    )


def test_the_kustomization_lists_every_manifest() -> None:
    [listed] = documents(DEPLOY / "kubernetes/kustomization.yaml")
    expected = {path.name for path in MANIFESTS} - {"kustomization.yaml"}
    assert expected == set(listed["resources"])
    assert {container["image"] for container in containers()} == {
        image["name"] for image in listed["images"]
    }


def test_the_image_is_slim_pinned_and_not_root() -> None:
    """Built with the constraints; every file it copies is there; the user is a number."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert "slim" in text
    assert "--constraint constraints.txt" in text
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    extras = re.search(r"\.\[(?P<names>[^]]+)\]", text)
    project = (ROOT / "pyproject.toml").read_text()
    for extra in (extras["names"] if extras else "").split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
            assert f"!{name}" in allowed, name


def test_compose_services_depend_on_what_is_there() -> None:
    """And run the example that is in the image."""
    services = compose()["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose()["volumes"]
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "a laptop's port is for that laptop"
    from examples.shop.settings import SERVICES

    named = [
        service["command"][-1]
        for service in services.values()
        if "--services" in service.get("command", ())
    ]
    assert sorted(SERVICES) == sorted(named)
    topics = services["topics"]["command"][0]
    assert all(name in topics for name in SERVICES)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_units(path: Path, tmp_path: Path) -> None:
    """As systemd itself checks them, with a program that exists on this machine."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    (tmp_path / "semel").write_text("#!/bin/sh\n")
    (tmp_path / "semel").chmod(0o755)
    for source in UNITS:
        text = source.read_text().replace("/opt/shop/bin", str(tmp_path))
        (tmp_path / source.name).write_text(text)
    done = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / path.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or path.name in line]
    assert (0, []) == (done.returncode, said), done.stderr


def test_units_hand_over_and_are_restricted() -> None:
    for path in UNITS:
        service = unit(path).get("Service")
        if service is None:
            continue
        assert ["yes"] == service["DynamicUser"]
        assert ["strict"] == service["ProtectSystem"]
        for environment in service["Environment"]:
            assert "://" not in environment, "addresses come by LoadCredential"
        if service["Type"] == ["exec"]:
            assert int(service["TimeoutStopSec"][0]) > 30
            assert ["always"] == service["Restart"]


def connector() -> dict[str, str]:
    found: dict[str, str] = json.loads((DEPLOY / "debezium/outbox-connector.json").read_text())[
        "config"
    ]
    return found


def placements() -> list[tuple[str, str]]:
    """Which column becomes which header."""
    listed = connector()["transforms.outbox.table.fields.additional.placement"].split(",")
    parts = [item.split(":") for item in listed]
    assert {"header"} == {part[1] for part in parts}
    return [(column, header) for column, _, header in parts]


def test_debezium_names_columns_that_exist() -> None:
    """Those of the row's key, payload and topic, and those that become headers are never NULL."""
    columns = OutboxRecord.__table__.columns
    config = connector()
    for option in ("event.id", "event.key", "event.payload"):
        assert config[f"transforms.outbox.table.field.{option}"] in columns
    assert config["transforms.outbox.route.by.field"] in columns
    for column, _ in placements():
        assert not columns[column].nullable, column
    assert config["table.include.list"].endswith(f".{OutboxRecord.__tablename__}")
    for option in ("database.password", "database.user"):
        assert config[option].startswith("${file:")
    assert set(config["transforms"].split(",")) == {
        name.split(".")[1] for name in config if name.startswith("transforms.")
    }


async def test_a_consumer_understands_what_debezium_would_send(sqlite: Database) -> None:
    """The row, put together as the configuration says, is the event that was added."""
    config, when = connector(), datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        async with storage.session_factory() as session:
            await SqlAlchemyOutbox(session, "acme").add(
                "orders",
                {"a": 1},
                event_type="OrderPlaced",
                event_id="id-1",
                key="k",
                schema_version=3,
                occurred_at=when,
            )
            await session.commit()
        [row] = await storage.outbox.search()
    texts = {column: str(getattr(row, column)) for column, _ in placements()}
    texts["occurred_at"] = row.occurred_at.isoformat().replace("+00:00", "Z")
    headers = {header: texts[column] for column, header in placements()}
    for name in ("version", "source"):
        transform = f"transforms.{name}."
        headers[config[f"{transform}header"]] = config[f"{transform}value.literal"]
    message: MessageEnvelope = decode(
        WireMessage(
            topic=getattr(row, config["transforms.outbox.route.by.field"]),
            key=getattr(row, config["transforms.outbox.table.field.event.key"]),
            headers=headers,
            body=json.dumps(
                getattr(row, config["transforms.outbox.table.field.event.payload"])
            ).encode(),
        )
    )
    assert ("id-1", "orders", "OrderPlaced", "acme") == (
        message.event_id,
        message.topic,
        message.event_type,
        message.tenant_id,
    )
    assert ("k", 3, when, "shop", {"a": 1}) == (
        message.order_key,
        message.schema_version,
        message.occurred_at,
        message.source,
        message.payload,
    )
