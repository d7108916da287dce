"""`semel doctor`: look whether a deployment is set up so that the promises hold."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.terminal import Terminal, cell, clean, plain
from semel.cli.times import span

if TYPE_CHECKING:
    from semel.operations.findings import Finding


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    command(app)(doctor)


def doctor(
    terminal: Terminal,
    *,
    long_open: Annotated[
        timedelta,
        typer.Option(parser=span, metavar="SPAN", help="Report transactions open for longer."),
    ] = "5m",  # type: ignore[assignment]
) -> None:
    """Look for settings that break a promise or make it slow, and tell how to mend them.

    With --hub its settings and its broker, too. Ends with 1 if there is an error or a warning.
    """
    findings = asyncio.run(_findings(terminal, long_open))
    problems = [finding for finding in findings if finding.severity != "info"]
    lines = [_line(finding) for finding in findings]
    closing = f"{len(problems)} problems found" if problems else "no problem found"
    terminal.show({"findings": plain(findings), "problems": len(problems)}, *lines, closing)
    if problems:
        raise typer.Exit(Exit.PROBLEM)


async def _findings(terminal: Terminal, long_open: timedelta) -> list[Finding]:
    from semel.doctor import examine_hub
    from semel.sqlalchemy.doctor import examine_database

    hub = terminal.target.find_hub()
    if hub is not None:
        async with hub.storage:
            return await examine_hub(hub, long_open=long_open)
    async with terminal.target.storage() as storage:
        return await examine_database(storage, long_open=long_open)


def _line(finding: Finding) -> Text:
    text = Text.assemble(cell(finding.severity.value), f" {finding.code}: ")
    return text.append(clean(f"{finding.sentence}.\n  fix: {finding.fix}"))
