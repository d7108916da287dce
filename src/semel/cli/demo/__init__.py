"""`semel demo`: a small shop while things go wrong on purpose."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from semel.cli.terminal import print_json


def demo(
    *,
    orders: Annotated[int, typer.Option(min=10, max=100_000, help="How many orders.")] = 300,
    seed: Annotated[int, typer.Option(help="Decides what fails, and when.")] = 1,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the database and the logs in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Place orders while processes are killed and the broker is away; then check the books.

    Projectors and consumers are processes of their own on one SQLite file, which is the broker
    too: no server is needed.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        balanced = asyncio.run(_play(keep.resolve(), orders, seed, as_json=as_json))
    else:
        with tempfile.TemporaryDirectory(prefix="semel-demo-") as folder:
            balanced = asyncio.run(_play(Path(folder), orders, seed, as_json=as_json))
    if not balanced:
        raise typer.Exit(1)


async def _play(folder: Path, orders: int, seed: int, *, as_json: bool) -> bool:
    from semel.cli.demo.books import audit
    from semel.cli.demo.display import Display
    from semel.cli.demo.story import Story

    console = Console(stderr=as_json)
    story = Story(folder, orders=orders, seed=seed)
    with Display(console, orders) as display:
        await story.play(display)
    findings = await audit(story)
    for finding in findings:
        mark = "[bold green]✓[/]" if finding.holds else "[bold red]✗[/]"
        console.print(f" {mark} {finding.text}", highlight=False)
    await story.close()
    balanced = all(finding.holds for finding in findings)
    console.print(
        "[bold green]The books balance.[/]"
        if balanced
        else "[bold red]The books do NOT balance.[/] Please report this, with --seed and --keep."
    )
    if as_json:
        print_json({"balanced": balanced, "findings": findings})
    return balanced
