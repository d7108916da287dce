#!/usr/bin/env python3
"""Write the list of commands into docs/reference/cli.md, from the commands themselves."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs/reference/cli.md"
BEGIN, END = "<!-- commands: written by scripts/cli_reference.py -->", "<!-- end of commands -->"
COMMON = ("--database", "--hub", "--json", "--help")


def commands(command: Any = None, path: str = "semel") -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its full name."""
    if command is None:
        from typer.main import get_command

        from semel.cli.app import app

        command = get_command(app)
    for name, sub in getattr(command, "commands", {}).items():
        full = f"{path} {name}"
        if hasattr(sub, "commands"):
            yield from commands(sub, full)
        else:
            yield full, sub


def options(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the arguments and options of a command, as they are written, and what they mean."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.name.upper()
            yield f"{name}..." if parameter.nargs == -1 else name, parameter.help or ""
        elif parameter.opts[0] not in COMMON:
            shown = ", ".join(reversed(parameter.opts))
            yield shown, parameter.help or ""


def render() -> str:
    """Return the generated part of the page."""
    lines = []
    for name, command in sorted(commands(), key=lambda item: item[0]):
        text = inspect.cleandoc(command.help or "")
        lines += [f"### `{name}`", "", text, ""]
        listed = list(options(command))
        if listed:
            lines += ["| | |", "|---|---|"]
            lines += [f"| `{shown}` | {help_} |" for shown, help_ in listed]
            lines += [""]
    return "\n".join(lines)


def page(text: str) -> str:
    """Return *text* with its generated part renewed."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n{END}{after}"


if __name__ == "__main__":
    new = page(PAGE.read_text())
    if "--check" in sys.argv[1:]:
        sys.exit(None if new == PAGE.read_text() else f"{PAGE.name} is out of date")
    PAGE.write_text(new)
