"""`semel cleanup`: remove what nobody needs any more, after it was archived if wanted."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.outbox import new_file
from semel.cli.terminal import Terminal, ago, plain
from semel.cli.times import span
from semel.cli.work import interrupted
from semel.errors import ConfigurationError
from semel.maintenance import Retention
from semel.operations import InboxFilter, OutboxFilter
from semel.states import InboxStatus, OutboxStatus

if TYPE_CHECKING:
    from semel.sqlalchemy.storage import SqlAlchemyStorage


class TableName(StrEnum):
    """What can be cleaned."""

    OUTBOX = "outbox"
    INBOX = "inbox"
    IDEMPOTENCY = "idempotency"


class _Stopped(Exception):  # noqa: N818  no error: somebody pressed Ctrl-C
    """Raised between two batches."""


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    command(app, risky=True)(cleanup)


def cleanup(
    terminal: Terminal,
    tables: Annotated[
        list[TableName] | None, typer.Argument(help="Only these: outbox, inbox, idempotency.")
    ] = None,
    *,
    keep_sent: Annotated[
        timedelta | None,
        typer.Option(parser=span, metavar="SPAN", help="How long sent events are kept (7d)."),
    ] = None,
    keep_inbox: Annotated[
        timedelta | None,
        typer.Option(parser=span, metavar="SPAN", help="How long the inbox remembers (30d)."),
    ] = None,
    horizon: Annotated[
        timedelta | None,
        typer.Option(
            parser=span,
            metavar="SPAN",
            help="How long a message can come again (7d); the inbox must remember longer.",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=100_000, help="Rows per transaction.")
    ] = 10_000,
    archive: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Write the rows as JSON lines into new files in this folder first.",
        ),
    ] = None,
) -> None:
    """Delete sent events, old inbox records and expired idempotency keys, batch by batch.

    With --hub its retention is the default. Whatever is not finished is never deleted.
    """
    chosen = tables or list(TableName)
    retention = _retention(terminal, keep_sent, keep_inbox, horizon, batch_size)
    if archive is not None and TableName.IDEMPOTENCY in chosen:
        if tables:
            raise ConfigurationError("idempotency keys are not archived: clean them up apart")
        terminal.say("idempotency keys are deleted without an archive")
    if not terminal.may(f"delete old rows of {', '.join(chosen)}: {_windows(retention)}"):
        terminal.run(lambda storage: _estimate(terminal, storage, chosen, retention))
        return
    Cleaning(terminal, chosen, retention, archive).run()


def _windows(retention: Retention) -> str:
    spans = {"sent events": retention.outbox_sent, "inbox": retention.inbox}
    return ", ".join(
        f"{name} kept {'for ever' if kept is None else ago(kept.total_seconds())}"
        for name, kept in spans.items()
    )


def _retention(
    terminal: Terminal,
    keep_sent: timedelta | None,
    keep_inbox: timedelta | None,
    horizon: timedelta | None,
    batch_size: int,
) -> Retention:
    hub = terminal.target.find_hub()
    given: dict[str, Any] = {
        "outbox_sent": keep_sent,
        "inbox": keep_inbox,
        "redelivery_horizon": horizon,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    base = hub.retention if hub is not None else Retention()
    return replace(base, batch_size=batch_size, **changes)


async def _estimate(
    terminal: Terminal,
    storage: SqlAlchemyStorage,
    tables: Sequence[TableName],
    retention: Retention,
) -> None:
    """Tell about how many rows it would be."""
    now = datetime.now(UTC)
    counts: dict[str, Any] = {}
    if TableName.OUTBOX in tables and retention.outbox_sent is not None:
        sent = OutboxFilter(status=OutboxStatus.SENT, until=now - retention.outbox_sent)
        counts["outbox"] = await storage.outbox.count(sent)
    if TableName.INBOX in tables and retention.inbox is not None:
        old = InboxFilter(status=InboxStatus.PROCESSED, until=now - retention.inbox)
        counts["inbox"] = await storage.inbox.count(old)
    lines = [f"{table}: about {count} rows" for table, count in counts.items()]
    shape = {"dry_run": True, "estimate": plain(counts)}
    terminal.show(shape, *(lines or ["nothing can be told beforehand"]))


class Cleaning:
    """One run over the tables; Ctrl-C stops it between two batches."""

    def __init__(
        self,
        terminal: Terminal,
        tables: Sequence[TableName],
        retention: Retention,
        archive: Path | None,
    ) -> None:
        self._terminal = terminal
        self._tables = tables
        self._retention = retention
        self._archive = archive
        self._removed: dict[str, int] = {}
        self._cancelled = False

    def run(self) -> None:
        """Do it, and tell how many rows are gone, whatever happens."""
        try:
            self._terminal.run(self._work)
        except _Stopped:
            self._cancelled = True
        finally:
            shape = {"removed": self._removed, "cancelled": self._cancelled, "dry_run": False}
            lines = [f"{table}: {number:,} rows deleted" for table, number in self._removed.items()]
            self._terminal.show(shape, *(lines or ["nothing was deleted"]))
        if self._cancelled:
            self._terminal.say("cancelled; what is deleted stays deleted")
            raise typer.Exit(Exit.INTERRUPTED)

    async def _work(self, storage: SqlAlchemyStorage) -> None:
        keep = self._retention
        common: dict[str, Any] = {"batch_size": keep.batch_size}
        with interrupted() as stop, ExitStack() as files:
            for table in self._tables:
                with self._terminal.progress(table, "rows") as advance:
                    options = {**common, "progress": self._told(table, advance, stop)}
                    if table is TableName.IDEMPOTENCY:
                        await storage.idempotency.cleanup(**options)
                        continue
                    span = keep.outbox_sent if table is TableName.OUTBOX else keep.inbox
                    if span is None:
                        continue
                    store = storage.outbox if table is TableName.OUTBOX else storage.inbox
                    await store.cleanup(
                        older_than=span,
                        archive=self._writer(table, files),
                        actor=self._terminal.actor,
                        **options,
                    )

    def _told(
        self, table: str, advance: Callable[[int], None], stop: asyncio.Event
    ) -> Callable[[int], None]:
        self._removed[table] = 0

        def told(number: int) -> None:
            self._removed[table] = number
            advance(number)
            if stop.is_set():
                raise _Stopped

        return told

    def _writer(
        self, table: str, files: ExitStack
    ) -> Callable[[Sequence[Mapping[str, Any]]], None] | None:
        if self._archive is None:
            return None
        path = self._archive / f"{table}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.jsonl"
        opened: list[IO[str]] = []

        def write(rows: Sequence[Mapping[str, Any]]) -> None:
            if not opened:
                path.parent.mkdir(parents=True, exist_ok=True)
                opened.append(files.enter_context(new_file(path)))
                self._terminal.say(f"archive: {path}")
            for row in rows:
                opened[0].write(json.dumps(plain(row)) + "\n")
            # On disk before the rows are gone.
            opened[0].flush()
            os.fsync(opened[0].fileno())

        return write
