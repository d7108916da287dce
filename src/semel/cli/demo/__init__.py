"""`semel demo`: a small shop while things go wrong on purpose."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_console = Console()


def demo(
    *,
    orders: Annotated[int, typer.Option(min=10, max=100_000, help="How many orders.")] = 300,
    seed: Annotated[int, typer.Option(help="Decides what fails, and when.")] = 1,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the database and the logs in this folder.")
    ] = None,
) -> None:
    """Place orders while processes are killed and the broker is away; then check the books.

    Projectors and consumers are processes of their own on one SQLite file, which is the broker
    too: no server is needed.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        balanced = asyncio.run(_play(keep.resolve(), orders, seed))
    else:
        with tempfile.TemporaryDirectory(prefix="semel-demo-") as folder:
            balanced = asyncio.run(_play(Path(folder), orders, seed))
    if not balanced:
        raise typer.Exit(1)


async def _play(folder: Path, orders: int, seed: int) -> bool:
    from semel.cli.demo.books import audit
    from semel.cli.demo.display import Display
    from semel.cli.demo.story import Story

    story = Story(folder, orders=orders, seed=seed)
    with Display(_console, orders) as display:
        await story.play(display)
    findings = await audit(story)
    for finding in findings:
        mark = "[bold green]✓[/]" if finding.holds else "[bold red]✗[/]"
        _console.print(f" {mark} {finding.text}", highlight=False)
    await story.close()
    balanced = all(finding.holds for finding in findings)
    _console.print(
        "[bold green]The books balance.[/]"
        if balanced
        else "[bold red]The books do NOT balance.[/] Please report this, with --seed and --keep."
    )
    return balanced
