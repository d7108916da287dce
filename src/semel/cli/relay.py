"""`semel run` and `semel relay`: the workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli import logs
from semel.cli.command import command
from semel.cli.http import HELP, new_observer, work
from semel.cli.load import load_hub
from semel.cli.target import address
from semel.cli.terminal import Terminal
from semel.cli.work import collect_rarely, reported
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.hub import Hub
    from semel.protocols import Observer


Http = Annotated[str | None, typer.Option(metavar="HOST:PORT", help=HELP)]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(run)
    command(app)(relay)


def run(
    target: Annotated[str, typer.Argument(help="Where the hub is: package.module:name")],
    *,
    only: Annotated[
        str | None, typer.Option(help="Run only the projector, or only the consumers.")
    ] = None,
    http: Http = None,
) -> None:
    """Run a hub's projector and consumers until SIGTERM or Ctrl-C."""
    if only not in (None, "projector", "consumers"):
        raise typer.BadParameter("--only takes projector or consumers")
    with reported():
        hub = load_hub(target)
        logs.tell_semel()
        what = only or "projector and consumers"
        typer.echo(f"semel runs {hub.name}: {what}; Ctrl-C ends it", err=True)
        collect_rarely()
        asyncio.run(
            work(hub, http, projector=only != "consumers", consumers=only != "projector"),
        )


def relay(
    terminal: Terminal,
    *,
    bus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The broker, if its URL has no password; else set SEMEL_BUS_URL(_FILE).",
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's events.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The service's name, which its events carry as their source.")
    ] = None,
    http: Http = None,
) -> None:
    """Run a projector only: from the database to the broker, without the service's code.

    Its settings are the environment's SEMEL_OUTBOX_...; with --hub they are the hub's.
    """
    hub = _hub(terminal, bus, tenant, name, observer=new_observer() if http else None)
    logs.tell_semel()
    terminal.say(f"semel relays the events of {hub.name}; Ctrl-C ends it")
    collect_rarely()
    asyncio.run(work(hub, http, projector=True, consumers=False))


def _hub(
    terminal: Terminal,
    bus: str | None,
    tenant: str | None,
    name: str | None,
    *,
    observer: Observer | None,
) -> Hub:
    from semel.hub import Hub
    from semel.settings import OutboxProjectorConfig
    from semel.transports import bus_from_url

    found = terminal.target.find_hub()
    if found is not None:
        if (bus, tenant, name) != (None, None, None):
            raise ConfigurationError("--hub has a bus, a tenant and a name: leave those away")
        return found
    url = address("--bus", bus, "SEMEL_BUS_URL")
    if url is None:
        raise ConfigurationError(
            "which broker? Set SEMEL_BUS_URL, such as kafka://host:9092 (database:// for none), or "
            "SEMEL_BUS_URL_FILE with the name of a file that holds it"
        )
    storage = terminal.target.storage()
    inside = {"storage": storage} if url.rstrip("/") == "database:" else {}
    return Hub(
        name or "semel",
        storage=storage,
        bus=bus_from_url(url, **inside),
        config=OutboxProjectorConfig.from_env(),
        tenant_id=tenant,
        observer=observer,
    )
