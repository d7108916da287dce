"""`semel asyncapi`: what a service says and hears, for others."""

from __future__ import annotations

from typing import Annotated

import typer

from semel.cli.command import command
from semel.cli.terminal import Terminal, print_json


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    command(app)(asyncapi)


def asyncapi(
    terminal: Terminal,
    *,
    version: Annotated[str, typer.Option(help="The version of your service.")] = "0.0.0",
    title: Annotated[str | None, typer.Option(help="Its title; the hub's name else.")] = None,
) -> None:
    """Print what a hub receives and sends as an AsyncAPI 3 document (JSON)."""
    from semel.asyncapi import describe_hub

    print_json(describe_hub(terminal.target.need_hub(), version=version, title=title))
