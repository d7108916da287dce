"""`semel outbox`: look at events."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.filters import EVENTS
from semel.cli.pages import Limit, gather
from semel.cli.terminal import Terminal, clean, pairs, plain, table
from semel.cli.work import fail
from semel.operations import OutboxFilter
from semel.operations.rows import outbox_row

if TYPE_CHECKING:
    from semel.operations import Why
    from semel.sqlalchemy.storage import SqlAlchemyStorage
    from semel.sqlalchemy.tables import OutboxRecord

app = typer.Typer(help="Look at events and repair them.", no_args_is_help=True)

EventId = Annotated[str, typer.Argument(help="The event's id.", show_default=False)]
Payload = Annotated[
    bool, typer.Option("--payload", help="Show payload and metadata, too: they may be private.")
]


@command(app, "list", group=EVENTS)
def list_(
    terminal: Terminal,
    *,
    where: OutboxFilter,
    limit: Limit = 50,
    before: Annotated[
        int | None, typer.Option(help="Go on below this sequence, as the last page said.")
    ] = None,
) -> None:
    """List events, newest first."""

    async def work(storage: SqlAlchemyStorage) -> tuple[list[OutboxRecord], int | None]:
        return await gather(
            lambda cursor, size: storage.outbox.search(where, before=cursor, limit=size),
            before,
            limit,
        )

    rows, following = terminal.run(work)
    columns = ["sequence", "id", "status", "topic", "type", "key", "tries", "created", "error"]
    terminal.show(
        {"items": [outbox_row(row) for row in rows], "next": following},
        table(
            columns,
            [
                (
                    str(row.sequence),
                    row.id,
                    row.status,
                    row.topic,
                    row.event_type,
                    row.order_key,
                    row.retry_count,
                    row.created_at,
                    row.error_message,
                )
                for row in rows
            ],
        ),
    )
    if not terminal.as_json:
        terminal.say(f"more: --before {following}" if following else f"{len(rows)} events")


@command(app)
def show(terminal: Terminal, event_id: EventId, *, payload: Payload = False) -> None:
    """Show one event."""

    async def work(storage: SqlAlchemyStorage) -> OutboxRecord | None:
        return await storage.outbox.get(event_id)

    found = terminal.run(work)
    if found is None:
        fail(f"there is no event {event_id!r} in the outbox", Exit.PROBLEM)
    shape = outbox_row(found, payload=payload)
    picture = {**shape}
    for name in ("payload", "event_metadata", "dead_letter"):
        if picture.get(name) is not None:
            picture[name] = json.dumps(picture[name], indent=2, ensure_ascii=False)
    terminal.show(shape, pairs(picture))


@command(app)
def why(terminal: Terminal, event_id: EventId) -> None:
    """Say why an event is where it is: sent, dead, or what it waits for."""

    async def work(storage: SqlAlchemyStorage) -> Why | None:
        return await storage.outbox.why(event_id)

    answer = terminal.run(work)
    if answer is None:
        fail(f"there is no event {event_id!r} in the outbox", Exit.PROBLEM)
    shape = {**plain(answer), "sentence": answer.sentence}
    terminal.show(shape, *[Text(clean(reason.sentence)) for reason in answer.reasons])


@command(app, group=EVENTS)
def export(
    terminal: Terminal,
    *,
    where: OutboxFilter,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this new file, not stdout.")
    ] = None,
    payload: Payload = False,
) -> None:
    """Write events as JSON lines, oldest first."""
    written = 0

    async def work(storage: SqlAlchemyStorage, file: IO[str] | None) -> None:
        nonlocal written
        with terminal.progress("export") as advance:
            async for row in storage.outbox.export(where, payload=payload):
                line = json.dumps(plain(row), ensure_ascii=True)
                if file is None:
                    typer.echo(line)
                else:
                    file.write(line + "\n")
                written += 1
                if written % 500 == 0:
                    advance(written)

    with ExitStack() as stack:
        file = None if output is None else stack.enter_context(new_file(output))
        try:
            terminal.run(lambda storage: work(storage, file))
        finally:
            terminal.say(f"{written:,} events written")


def new_file(path: Path) -> IO[str]:
    """Open a file that must not exist yet, for its owner's eyes only."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"{path} exists already: nothing was written", Exit.USAGE)
    except OSError as error:
        fail(f"{path} cannot be written ({type(error).__name__})", Exit.USAGE)
    return os.fdopen(number, "w", encoding="utf-8")
