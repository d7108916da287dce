"""What semel is made of: a list that can be read, pins that are asked after, few dependencies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Known holes below these: see the comments in pyproject.toml.
FLOORS = {"asyncmy": "0.2.12", "starlette": "1.0.1", "pymysql": "1.1.1", "jinja2": "3.1.6"}


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement)[0]).lower()


def requirements(*, dev: bool = True) -> dict[str, str]:
    """Everything that an extra may bring, by name."""
    extras = PROJECT["optional-dependencies"]
    given = PROJECT["dependencies"] + [
        each for name in extras for each in extras[name] if dev or name != "dev"
    ]
    return {name_of(each): each for each in given if name_of(each) != "semel"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {name_of(line): line.partition("==")[2] for line in lines if "==" in line}


def test_sec20_the_core_needs_sqlalchemy_alone() -> None:
    assert ["sqlalchemy"] == [name_of(each) for each in PROJECT["dependencies"]]


def test_sec20_everything_is_pinned_and_nothing_names_a_place() -> None:
    assert not set(requirements()) - set(pins())
    assert not re.search(r"@|://", (ROOT / "constraints.txt").read_text())


@pytest.mark.parametrize("name", FLOORS)
def test_sec20_floors_are_above_known_holes(name: str) -> None:
    floor = re.search(r">=\s*([\d.]+)", requirements()[name])
    assert floor is not None
    assert version(FLOORS[name]) <= version(floor[1]) <= version(pins()[name])


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def test_sec20_the_bill_of_materials_names_every_dependency(tmp_path: Path) -> None:
    """CycloneDX, with versions, as a graph that starts at semel."""
    file = tmp_path / "bill.json"
    subprocess.run(
        [ROOT / "scripts/sbom", sys.executable, file, "--no-validate"],
        check=True,
        capture_output=True,
        timeout=100,
    )
    bill = json.loads(file.read_text())
    parts = {name_of(part["name"]): part for part in bill["components"]}
    edges = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    root = bill["metadata"]["component"]

    assert ("CycloneDX", "semel") == (bill["bomFormat"], root["name"])
    for name in requirements(dev=False):
        assert parts[name]["version"]
    assert parts["sqlalchemy"]["bom-ref"] in edges[root["bom-ref"]]


ADVICE = """
import json, sys
print(json.dumps({"dependencies": %s}))
"""


@pytest.mark.parametrize(
    ("found", "required", "code", "told"),
    [
        ("[]", "", 0, "0 of"),
        ("[]", "required", 1, "0 of"),
        ('[{"name": "a", "skip_reason": "offline"}]', "", 0, "0 of"),
        (
            '[{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]',
            "",
            1,
            "a 1: CVE-1, fixed in 2",
        ),
    ],
)
def test_sec20_the_audit_fails_on_what_it_finds_and_says_what_it_did_not_see(
    tmp_path: Path, found: str, required: str, code: int, told: str
) -> None:
    """pip-audit is played by a script: here, its advisories may be out of reach."""
    (tmp_path / "pip_audit.py").write_text(ADVICE % found)
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/audit.py"],
        env={"PYTHONPATH": str(tmp_path), "AUDIT": required},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (code, 1) == (done.returncode, len(done.stdout.splitlines())), done.stderr
    assert told in done.stdout


def test_sec20_there_is_a_way_to_report() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for heading in ("## Reporting", "## Supported versions", "## Dependencies"):
        assert heading in text
    assert "privately" in text
