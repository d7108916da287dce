"""`semel db`: create, upgrade, check and print the tables."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semel.cli.app import app
from semel.cli.exits import Exit
from semel.sqlalchemy.layout import SCHEMA_VERSION
from tests.cli.conftest import Cli, both


@both
def test_upgrade_makes_tables_that_pass_the_check(empty: Cli) -> None:
    """Also when it is called again, and after `create`."""
    assert Exit.PROBLEM == empty("db", "check").exit_code
    for command in ("upgrade", "upgrade", "create", "check"):
        done = empty("db", command)
        assert Exit.OK == done.exit_code, done.output
    assert {"upgraded": True} == empty.json("db", "upgrade")


def test_upgrade_needs_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Alembic it says how to install it; `create` works."""
    for name in [name for name in sys.modules if name.startswith("semel.sqlalchemy.migrations")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "alembic", None)
    env = {"SEMEL_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/x.db"}
    done = CliRunner().invoke(app, ["db", "upgrade"], env=env)
    assert Exit.USAGE == done.exit_code
    assert "semel[migrations]" in done.output
    assert Exit.OK == CliRunner().invoke(app, ["db", "create"], env=env).exit_code


def test_sql_is_a_script(tmp_path: Path) -> None:
    """It runs as it is printed, as text and in JSON, and needs no database to be written."""
    printed = CliRunner().invoke(app, ["db", "sql", "sqlite"])
    assert Exit.OK == printed.exit_code
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.executescript(printed.stdout)
        [value] = connection.execute("SELECT value FROM outbox_control WHERE name = 'schema'")
    assert SCHEMA_VERSION == json.loads(value[0])["version"]
    wrapped = CliRunner().invoke(app, ["db", "sql", "sqlite", "--json"])
    assert printed.stdout == json.loads(wrapped.stdout)["sql"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["oracle"], "postgresql"),
        (["sqlite", "--since", "99"], "no 99"),
        (["postgresql", "--row-level-security"], "--tenant-role"),
        (["sqlite", "--row-level-security"], "only postgresql"),
    ],
)
def test_sql_that_does_not_exist(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["db", "sql", *arguments])
    assert Exit.USAGE == done.exit_code
    assert said in " ".join(done.output.split())
