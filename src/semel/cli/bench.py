"""`semel bench`: how fast semel is on your servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command
from semel.cli.target import address
from semel.cli.terminal import Terminal, plain, table
from semel.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    from semel.cli.measuring import Figure
    from semel.protocols import MessageBus
    from semel.sqlalchemy.storage import SqlAlchemyStorage


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    command(app)(bench)


def bench(
    terminal: Terminal,
    *,
    bus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Relay to this broker, too; if its URL has a password, set SEMEL_BUS_URL(_FILE).",
        ),
    ] = None,
    events: Annotated[int, typer.Option(min=100, help="How large the backlogs are.")] = 20_000,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Measure although the database holds events.")
    ] = False,
) -> None:
    """Measure writing, relaying, latency and inbox on your own servers.

    Works on tables of its own, which are dropped afterwards: a schema (PostgreSQL), a database
    (MySQL, MariaDB) or a file (SQLite). Refuses a database whose outbox holds unsent events,
    unless told. The broker's topic is semel-bench; what is published there stays.
    """
    url = address("--bus", bus, "SEMEL_BUS_URL")
    figures = asyncio.run(_measure(terminal, url, events, anyway=anyway))
    rows = [[item.question, item.side, f"{item.figure:,.5g}", item.unit] for item in figures]
    terminal.show({"figures": plain(figures)}, table(["", "", "", ""], rows))


async def _measure(
    terminal: Terminal, url: str | None, events: int, *, anyway: bool
) -> list[Figure]:
    from semel.cli import measuring
    from semel.sqlalchemy.scratch import scratch_storage

    few = max(100, events // 20)
    found: list[Figure] = []
    async with terminal.target.storage() as storage:
        if not anyway:
            await _refuse_events(storage)
        async with scratch_storage(storage) as scratch:
            steps: list[tuple[str, Callable[[], Awaitable[list[Figure]]]]] = [
                ("transactions with events", lambda: measuring.writes(scratch, few)),
                ("the relay into a sink", lambda: measuring.relay(scratch, events)),
                ("commit to publish", lambda: measuring.latency(scratch, min(few, 500))),
                ("the inbox", lambda: measuring.inbox(scratch, few)),
            ]
            for name, step in steps:
                terminal.say(f"measuring {name}")
                found += await step()
            if url is not None:
                terminal.say("measuring the relay to the bus")
                async with _bus(url, scratch) as started:
                    found += await measuring.relay(scratch, events, started)
    return found


async def _refuse_events(storage: SqlAlchemyStorage) -> None:
    try:
        await storage.ping()
    except SchemaError:
        return  # no tables, no events
    stats = await storage.outbox.stats()
    unsent = {name: count for name, count in stats.counts.items() if name != "SENT" and count}
    if unsent:
        told = ", ".join(f"{count:,} {name}" for name, count in unsent.items())
        raise ConfigurationError(
            f"this database is in use: its outbox holds {told}. Measuring would slow it down: "
            "name another database, or add --anyway"
        )


@asynccontextmanager
async def _bus(url: str, storage: SqlAlchemyStorage) -> AsyncIterator[MessageBus]:
    """A bus that is started and has somewhere to put our messages."""
    from semel.cli.measuring import TOPIC
    from semel.transports import bus_from_url

    inside = {"storage": storage} if url.rstrip("/") == "database:" else {}
    bus = bus_from_url(url, **inside)
    await bus.start()
    try:
        declare = getattr(bus, "declare", None)
        if declare is not None:
            await declare(TOPIC)
        subscription = await bus.subscribe(TOPIC, group=TOPIC)
        await subscription.close()
        yield bus
    finally:
        await bus.close()
