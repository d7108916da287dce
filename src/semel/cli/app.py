"""The commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from semel import __version__
from semel.cli import (
    asyncapi,
    bench,
    cleanup,
    dashboard,
    database,
    demo,
    doctor,
    idempotency,
    inbox,
    leases,
    logs,
    outbox,
    pause,
    relay,
    repair,  # noqa: F401  adds its commands to those of the outbox
    status,
)

app = typer.Typer(
    name="semel",
    help="Reliable messaging on the database that your service already has.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
relay.add_to(app)
status.add_to(app)
dashboard.add_to(app)
app.add_typer(outbox.app, name="outbox")
app.add_typer(inbox.app, name="inbox")
app.add_typer(idempotency.app, name="idempotency")
pause.add_to(app)
app.add_typer(leases.app, name="lease")
cleanup.add_to(app)
app.add_typer(database.app, name="db")
doctor.add_to(app)
bench.add_to(app)
asyncapi.add_to(app)


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


def _version(value: bool) -> None:
    if value:
        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="SEMEL_LOG_FORMAT", help="How log lines look, on stderr.")
    ] = LogFormat.TEXT,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Set up logging."""
    logs.set_up(verbose=verbose, as_json=log_format is LogFormat.JSON)
