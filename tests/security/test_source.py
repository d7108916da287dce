"""Rules about the source itself: what it may not call, and where it may come close."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "semel"
FILES = sorted(SOURCE.rglob("*.py"))

#: Where bandit's rules are set aside: all of it random pauses, constants and integers in SQL,
#: annotations of the application's own functions, and words that look like passwords.
EXCEPTIONS = {
    "binding.py": {"S307"},
    "breaker.py": {"S311"},
    "cli/demo/story.py": {"S311"},
    "publishing.py": {"S311"},
    "retry.py": {"S311"},
    "sqlalchemy/dialects/lanes.py": {"S608"},
    "sqlalchemy/dialects/mysql.py": {"S608"},
    "sqlalchemy/dialects/postgresql.py": {"S311", "S608"},
    "sqlalchemy/dialects/postgresql_sql.py": {"S608"},
    "testing/contracts/idempotency.py": {"S106"},
    "transports/database.py": {"S311"},
    "transports/faults.py": {"S311"},
}


@cache
def parsed(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in FILES:
        name = str(path.relative_to(SOURCE))
        for node in parsed(path):
            yield name, node


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_sec07_bandit_rules_have_no_other_exceptions() -> None:
    """Ruff's S rules, also where a line says `noqa`; asserts narrow types and guard no input."""
    command = ["check", "--select", "S", "--ignore", "S101", "--ignore-noqa", "--no-cache"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--output-format", "json", str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found: dict[str, set[str]] = {}
    for each in json.loads(done.stdout):
        name = str(Path(each["filename"]).relative_to(SOURCE))
        found.setdefault(name, set()).add(each["code"])

    assert EXCEPTIONS == found


def test_sec07_sql_text_is_put_together_in_dialects_only() -> None:
    """Elsewhere `text()` takes a constant: nobody can put a value into it."""
    for name, node in nodes():
        if (
            isinstance(node, ast.Call)
            and called(node) in ("text", "exec_driver_sql")
            and node.args
            and not isinstance(node.args[0], ast.Constant | ast.Name)
        ):
            assert name.startswith("sqlalchemy/dialects/"), f"{name}:{node.lineno}"


FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "yaml", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "import_module"}
#: Annotations of the application's handlers; `semel run module:hub`; names from tables of our own.
EXPECTED_CALLS = {
    *("__init__.py", "codecs/__init__.py", "transports/__init__.py"),  # tables of our own modules
    *("binding.py", "cli/load.py"),
}


def test_sec10_nothing_turns_data_into_code() -> None:
    found = set()
    for name, node in nodes():
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES, name
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES, name
        elif (
            isinstance(node, ast.Call)
            and called(node) in FORBIDDEN_CALLS
            and not isinstance(node.args[0], ast.Constant)
        ):
            found.add(name)

    assert EXPECTED_CALLS == found


def test_sec17_nothing_switches_the_check_of_certificates_off() -> None:
    wrong = re.compile(
        r"CERT_NONE|check_hostname\s*=\s*False|verify\s*=\s*False|ssl_cert_reqs|"
        r"allow_insecure|enable\.ssl\.certificate\.verification|_create_unverified"
    )
    for path in FILES:
        assert not wrong.search(path.read_text()), path.name


def test_sec06_access_never_depends_on_the_url_of_a_request() -> None:
    """Starlette makes `request.url` of the Host header, which the caller writes."""
    for name, node in nodes():
        if isinstance(node, ast.Attribute) and node.attr in ("url", "base_url"):
            assert ast.unparse(node.value) != "request", f"{name}:{node.lineno}"


@pytest.mark.parametrize("path", sorted((SOURCE / "dashboard" / "templates").rglob("*.html")))
def test_sec05_templates_escape_everything(path: Path) -> None:
    text = path.read_text()
    # What is written in the template itself may be safe.
    assert not re.search(
        r"(?<!['\"])\|\s*safe\b|autoescape\s+false|<script(?![^>]*\bsrc=)|\son\w+\s*=", text
    )
