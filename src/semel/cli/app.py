"""The commands."""

from __future__ import annotations

import logging
from typing import Annotated

import typer
from rich.console import Console

from semel import __version__
from semel.cli import database, demo
from semel.cli.load import load_hub
from semel.cli.work import run_async

app = typer.Typer(
    name="semel",
    help="Reliable messaging on the database that your service already has.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.add_typer(database.app, name="db")
app.command("demo")(demo.demo)
_errors = Console(stderr=True)


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
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


@app.command()
def run(
    target: Annotated[str, typer.Argument(help="Where the hub is: package.module:name")],
    *,
    only: Annotated[
        str | None, typer.Option(help="Run only the projector, or only the consumers.")
    ] = None,
) -> None:
    """Run a hub's projector and consumers until SIGTERM or Ctrl-C."""
    if only not in (None, "projector", "consumers"):
        raise typer.BadParameter("--only takes projector or consumers")
    hub = load_hub(target)
    logging.getLogger("semel").setLevel(logging.INFO)
    _errors.print(f"semel runs {hub.name}: {only or 'projector and consumers'}; Ctrl-C ends it")
    run_async(
        hub.run_forever(projector=only != "consumers", consumers=only != "projector"),
    )
