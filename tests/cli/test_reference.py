"""Whatever the command line can do is documented."""

from __future__ import annotations

import re

import pytest
from scripts import cli_reference

from semel.cli.exits import Exit
from semel.operations import findings
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/reference/cli.md").read_text()
COMMANDS = dict(cli_reference.commands())
DOCTORS = [
    ROOT / "src/semel/doctor.py",
    ROOT / "src/semel/sqlalchemy/doctor.py",
    *(ROOT / "src/semel/sqlalchemy/dialects").glob("doctor_*.py"),
]


def test_the_page_is_that_of_the_commands() -> None:
    """`python scripts/cli_reference.py` writes it."""
    assert cli_reference.page(PAGE) == PAGE


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_option_says_what_it_does(name: str) -> None:
    """In its help, which is in the page, and by its JSON shape, written by hand."""
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name}"
    shapes = PAGE.partition("## What `--json` prints")[2].partition("\n## ")[0]
    assert f"`{name}`" in shapes


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"semel run"}))
def test_every_command_prints_json(name: str) -> None:
    assert "--json" in [option for parameter in COMMANDS[name].params for option in parameter.opts]


@pytest.mark.parametrize("code", list(Exit))
def test_exit_codes(code: Exit) -> None:
    assert f"\n| {code.value} | " in PAGE


def test_every_finding_of_the_doctor() -> None:
    """Its code is in the table."""
    listed = PAGE.partition("## What the doctor looks for")[2].partition("\n## ")[0]
    names = "error|warning|info"
    found = {
        code
        for file in DOCTORS
        for code in re.findall(rf'\b(?:{names})\(\s*"([a-z-]+)"', file.read_text())
    }
    assert len(found) > 15
    assert {code for code in found if f"`{code}`" not in listed} == set()
    assert set(findings.Severity) == {"error", "warning", "info"}
