"""What holds for every command: addresses, exit codes, colours, help, completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from semel.cli.target import has_secret
from tests.cli.conftest import SOURCE, Cli
from tests.cli.hubs import write_service

on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
pytestmark = on_sqlite


def test_no_database(cli: Cli) -> None:
    """The way to name one is told."""
    done = cli("status", SEMEL_DATABASE_URL=None)
    assert 2 == done.exit_code
    assert "SEMEL_DATABASE_URL_FILE" in done.stderr
    assert "--hub" in done.stderr


def test_database_by_file(cli: Cli) -> None:
    """A file may hold the address, as containers get their secrets; not both at once."""
    file = cli.folder / "secret"
    file.write_text(f"{cli.url}\n")
    by_file = {"SEMEL_DATABASE_URL": None, "SEMEL_DATABASE_URL_FILE": str(file)}
    assert 0 == cli("status", **by_file).exit_code
    assert 2 == cli("status", SEMEL_DATABASE_URL_FILE=str(file)).exit_code
    file.write_text("")
    assert 2 == cli("status", **by_file).exit_code
    by_file["SEMEL_DATABASE_URL_FILE"] = str(cli.folder / "missing")
    done = cli("status", **by_file)
    assert 2 == done.exit_code
    assert "cannot be read" in done.stderr


def test_database_by_option(cli: Cli) -> None:
    """An address without a password may be an argument; one with a password is refused."""
    assert 0 == cli("status", "--database", cli.url, SEMEL_DATABASE_URL=None).exit_code
    done = cli("status", "--database", "postgresql+asyncpg://u:CANARY-7f3@h/d")
    assert 2 == done.exit_code
    assert "SEMEL_DATABASE_URL" in done.stderr
    assert "CANARY-7f3" not in done.output


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql+asyncpg://host/db", False),
        ("postgresql+asyncpg://user@host/db", False),
        ("postgresql+asyncpg://user:pw@host/db", True),
        ("postgresql+asyncpg://user:p@ss:w@host/db", True),
        ("postgresql+asyncpg://host/db?password=x", True),
        ("kafka://host:9092?sasl.password=x", True),
        ("nats://host?token=x", True),
        ("redis://:pw@host/0", True),
        ("sqlite+aiosqlite:///a@b:c.db", False),
        ("postgresql://[bad@x", True),
    ],
)
def test_secrets_are_recognised(url: str, secret: bool, database: object) -> None:
    assert secret is has_secret(url)


def test_hub_by_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its storage is used; a hub that is not there is a usage error with a hint."""
    name = write_service(cli.folder)
    monkeypatch.chdir(cli.folder)
    monkeypatch.setenv("SERVICE_DATABASE", cli.url)
    assert 0 == cli("status", "--hub", name, SEMEL_DATABASE_URL=None).exit_code
    assert 0 == cli("status", SEMEL_DATABASE_URL=None, SEMEL_HUB=name).exit_code
    (registered,) = cli.json("consumers", "--hub", name)["registered"]
    assert ["OrderPlaced"] == registered["event_types"]
    assert 2 == cli("status", "--hub", name, "--database", cli.url).exit_code
    for wrong, hint in (
        ("service", "package.module:name"),
        ("service:x", "hub"),
        ("nope:x", "no module"),
    ):
        done = cli("status", "--hub", wrong)
        assert 2 == done.exit_code
        assert hint in done.stderr
    sys.modules.pop("service", None)


def test_a_database_that_does_not_answer(cli: Cli) -> None:
    """Exit code 3, one line, no stack."""
    done = cli("status", SEMEL_DATABASE_URL="postgresql+asyncpg://u:CANARY-7f3@127.0.0.1:1/d")
    assert 3 == done.exit_code, done.output
    assert 1 == len(done.stderr.splitlines())
    assert "CANARY-7f3" not in done.output


@pytest.mark.parametrize("url", ["nonsense", "oracle://h/d", "mysql+pymysql://h/d", "sqlite://"])
def test_an_address_that_cannot_work(cli: Cli, url: str) -> None:
    """Exit code 2: nothing was tried."""
    done = cli("status", SEMEL_DATABASE_URL=url)
    assert 2 == done.exit_code, done.output
    assert "error:" in done.stderr


@pytest.mark.parametrize("given", ["yesterday", "12", "2026-13-01", "99999999999999d", "-1h"])
def test_times_that_are_none(cli: Cli, given: str) -> None:
    """The forms that are understood are told."""
    done = cli("outbox", "list", "--since", given)
    assert 2 == done.exit_code


def test_an_unexpected_error_has_its_own_code(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """70, with a stack for the report, and without the secret in its text."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("password=CANARY-7f3")

    monkeypatch.setattr("semel.sqlalchemy.storage.SqlAlchemyStorage.ping", broken)
    done = cli("status")
    assert 70 == done.exit_code
    assert "RuntimeError" in done.stderr
    assert "terminal.py" in done.stderr
    assert "CANARY-7f3" not in done.output


def test_results_and_words_are_apart(cli: Cli) -> None:
    """In a pipe: no colours, JSON alone on stdout."""
    done = cli.run("outbox", "list")
    assert 0 == done.returncode
    assert "0 events" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert '{\n  "items": [],\n  "next": null\n}\n' == cli.run("outbox", "list", "--json").stdout


def test_a_reader_that_leaves_early_is_no_error(cli: Cli) -> None:
    """`semel ... | head` ends quietly."""
    process = cli.start("db", "sql", "postgresql")
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err


def test_ctrl_c_ends_watching(cli: Cli) -> None:
    """After a line of JSON per look."""
    process = cli.start("status", "--watch", "--json", "--interval", "0.2")
    assert process.stdout is not None
    assert process.stdout.readline().startswith('{"backlog": 0')
    assert process.stdout.readline().startswith('{"backlog": 0')
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (0, "") == (process.returncode, err)


def test_help_loads_no_driver(database: object) -> None:
    """Nor a broker's client: the command line starts fast."""
    code = (
        "import sys\n"
        "from semel.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "names = {'asyncpg', 'psycopg', 'asyncmy', 'aiosqlite', 'confluent_kafka', 'aio_pika',\n"
        "         'nats', 'redis', 'pulsar', 'alembic', 'fastapi', 'starlette', 'pydantic',\n"
        "         'msgspec', 'prometheus_client', 'opentelemetry'}\n"
        "print('LOADED', sorted(names & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "LOADED []" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, cli: Cli) -> None:
    """Commands, options and choices are completed; here the shell's question is asked by hand."""
    script = cli.run("--show-completion", shell)
    assert 0 == script.returncode, script.stderr
    assert "_SEMEL_COMPLETE" in script.stdout


def test_completion_knows_commands_and_choices(cli: Cli) -> None:
    """As bash asks for it."""

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        done = subprocess.run(
            [sys.executable, "-m", "semel"],
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "_SEMEL_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split()

    assert ["outbox"] == ask("semel out")
    assert {"requeue", "replay"} == set(ask("semel outbox re"))
    assert ["dead"] == [word.lower() for word in ask("semel outbox list --status de")]
