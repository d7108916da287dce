"""The commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Annotated, Any

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from semel import __version__
from semel.cli import database, demo
from semel.cli.load import load_hub
from semel.errors import SemelError, describe

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


def _version(value: bool) -> None:  # noqa: FBT001  typer's callback
    if value:
        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    version: Annotated[
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


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run *work*; say in one line what went wrong, without a stack."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (SemelError, SQLAlchemyError, OSError) as error:
        _errors.print(f"[bold red]error:[/] {describe(error)}", highlight=False)
        raise typer.Exit(1) from None
