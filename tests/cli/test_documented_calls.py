"""Every call of `semel` that a page shows is one that the command line understands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import cli_reference

from tests.docs.pages import ROOT, pages

COMMANDS = dict(cli_reference.commands())
GROUPS = {name.rpartition(" ")[0] for name in COMMANDS}
TOP = {"--help", "--version", "--verbose", "-v", "--install-completion", "--show-completion"}
_SHOWN = re.compile(r"^```console\n(.*?)^```|(`semel [^`]+`)", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:^\s*(?:\$ |command: |- )?|`|ExecStart=\S*/)(semel [^`\n#|]+)", re.MULTILINE)


def calls() -> Iterator[tuple[Path, str]]:
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    for page in [*pages(), *deployed]:
        try:
            text = page.read_text()
        except UnicodeDecodeError:
            continue
        for block in re.findall(
            r"^```console\n(.*?)^```|(`semel [^`]+`)", text, re.MULTILINE | re.DOTALL
        ):
            for call in _CALL.findall(block[0] or block[1]):
                yield page, call.strip()


CALLS = sorted(set(calls()))


def test_there_are_calls() -> None:
    assert len(CALLS) > 20


@pytest.mark.parametrize(
    ("page", "call"), [pytest.param(*item, id=f"{item[0].name}: {item[1]}") for item in CALLS]
)
def test_call_is_understood(page: Path, call: str) -> None:
    """Its command exists, and so do its options."""
    words = [word for word in shlex.split(call.replace("...", "")) if word != "COMMAND"]
    named = [word for word in words if not word.startswith("-")]
    full = " ".join(named[:3]) if " ".join(named[:2]) in GROUPS else " ".join(named[:2])
    if full in (*GROUPS, "semel", *(name.split(" ")[0] for name in GROUPS)):
        assert {word for word in words if word.startswith("-")} <= TOP
        return
    assert full in COMMANDS, f"{page.name} shows {call}"
    known = TOP.union(*(parameter.opts for parameter in COMMANDS[full].params), {"--log-format"})
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert used <= known, f"{page.name} shows {call}"
