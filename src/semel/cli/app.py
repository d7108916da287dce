"""The commands."""

from __future__ import annotations

from typing import Annotated

import typer

from semel import __version__
from semel.cli import database, demo, logs, relay

app = typer.Typer(
    name="semel",
    help="Reliable messaging on the database that your service already has.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
relay.add_to(app)
app.add_typer(database.app, name="db")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Set up logging."""
    logs.set_up(verbose=verbose)
