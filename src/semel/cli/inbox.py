"""`semel inbox`: which messages consumers have dealt with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.filters import MESSAGES
from semel.cli.pages import Limit, gather
from semel.cli.terminal import Terminal, figure, pairs, plain, table
from semel.cli.work import fail
from semel.operations import InboxFilter
from semel.operations.rows import inbox_row
from semel.states import InboxStats, InboxStatus

if TYPE_CHECKING:
    from rich.table import Table

    from semel.sqlalchemy.storage import SqlAlchemyStorage
    from semel.sqlalchemy.tables import InboxRecord

app = typer.Typer(help="Look at what consumers have dealt with.", no_args_is_help=True)

MessageId = Annotated[str, typer.Argument(help="The message's id.", show_default=False)]
Consumer = Annotated[str, typer.Option(help="The consumer.", show_default=False)]
Tenant = Annotated[str, typer.Option(help="The tenant.")]


@command(app, "list", group=MESSAGES)
def list_(
    terminal: Terminal,
    *,
    where: InboxFilter,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option(help="Go on here, as the last page said.")] = None,
) -> None:
    """List what was processed, newest first."""

    async def work(storage: SqlAlchemyStorage) -> tuple[list[InboxRecord], str | None]:
        return await gather(
            lambda cursor, size: storage.inbox.search(where, before=cursor, limit=size),
            before,
            limit,
        )

    rows, following = terminal.run(work)
    terminal.show(
        {"items": [inbox_row(row) for row in rows], "next": following},
        table(
            ["message", "consumer", "status", "type", "source", "tries", "processed", "reason"],
            [
                (
                    row.message_id,
                    row.consumer_name,
                    row.status,
                    row.event_type,
                    row.source,
                    row.attempts,
                    row.processed_at,
                    row.reason,
                )
                for row in rows
            ],
        ),
    )
    if not terminal.as_json:
        terminal.say(f"more: --before '{following}'" if following else f"{len(rows)} messages")


@command(app)
def show(
    terminal: Terminal,
    message_id: MessageId,
    *,
    consumer: Consumer,
    tenant: Tenant = "default",
    payload: Annotated[
        bool, typer.Option("--payload", help="Show a kept payload, too: it may be private.")
    ] = False,
) -> None:
    """Show what one consumer did with one message."""

    async def work(storage: SqlAlchemyStorage) -> InboxRecord | None:
        return await storage.inbox.get(message_id, consumer_name=consumer, tenant_id=tenant)

    found = terminal.run(work)
    if found is None:
        _unknown(message_id, consumer)
    shape = inbox_row(found, payload=payload)
    terminal.show(shape, pairs(shape))


@command(app, risky=True)
def forget(
    terminal: Terminal, message_id: MessageId, *, consumer: Consumer, tenant: Tenant = "default"
) -> None:
    """Let a message be processed again when it comes again: its effects happen again, too.

    Events that its handler has emitted are not emitted again while they are in the outbox.
    """

    async def look(storage: SqlAlchemyStorage) -> bool:
        found = await storage.inbox.get(message_id, consumer_name=consumer, tenant_id=tenant)
        return found is not None

    async def work(storage: SqlAlchemyStorage) -> bool:
        return await storage.inbox.forget(
            message_id, consumer_name=consumer, tenant_id=tenant, actor=terminal.actor
        )

    allowed = terminal.may(f"forget that {consumer} processed {message_id}")
    if not terminal.run(work if allowed else look):
        _unknown(message_id, consumer)
    shape = {"forgotten": allowed, "dry_run": terminal.dry_run, "message_id": message_id}
    terminal.show(shape, "forgotten" if allowed else "it is there")


@command(app)
def stats(terminal: Terminal) -> None:
    """Count what each consumer's part of the inbox holds."""

    async def work(storage: SqlAlchemyStorage) -> Sequence[InboxStats]:
        return await storage.inbox.stats()

    found = terminal.run(work)
    terminal.show(plain(found), consumers_table(found))


def consumers_table(stats: Sequence[InboxStats]) -> Table:
    """Return the figures of each consumer; `+` means: at least."""
    return table(
        ["consumer", *(status.value.lower() for status in InboxStatus), "redelivered", "oldest"],
        [
            (
                item.consumer_name,
                *(figure(item.counts.get(status, 0), capped=item.capped) for status in InboxStatus),
                figure(item.redelivered, capped=item.capped),
                item.oldest,
            )
            for item in stats
        ],
    )


def _unknown(message_id: str, consumer: str) -> NoReturn:
    fail(f"the inbox of {consumer!r} has no message {message_id!r}", Exit.PROBLEM)
