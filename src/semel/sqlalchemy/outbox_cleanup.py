"""Deleting rows that were sent, in bounded batches, after they were archived if wanted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, delete, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.envelope import check_tenant
from semel.errors import ConfigurationError
from semel.operations import OutboxFilter
from semel.operations.rows import outbox_row
from semel.protocols.stores import Archive, Deleted
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import OUTBOX, Span, bounds, next_span
from semel.sqlalchemy.types import UtcDateTime
from semel.states import OutboxStatus

#: Rows with their payloads are held in memory: fewer at once.
ARCHIVED_AT_ONCE = 500


class OutboxCleanup(OperatorSide):
    """Deletes along the primary key."""

    async def cleanup(
        self,
        *,
        older_than: timedelta,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
        archive: Archive | None = None,
        progress: Deleted | None = None,
        actor: str = "retention",
    ) -> int:
        """Delete rows SENT before that, in bounded batches along the primary key."""
        if batch_size < 1:
            raise ConfigurationError("batch_size must be at least 1")
        size = batch_size if archive is None else min(batch_size, ARCHIVED_AT_ONCE)
        trail = Trail(actor=actor, action="outbox.cleanup", target=tenant_id)
        cutoff, span = await self._transact(lambda c: self._plan(c, older_than))
        old = and_(
            OUTBOX.c.status == OutboxStatus.SENT.value,
            OUTBOX.c.lane.is_(None),
            OUTBOX.c.sent_at < cutoff,
        )
        if tenant_id is not None:
            old = and_(old, OUTBOX.c.tenant_id == check_tenant(tenant_id))
        deleted = 0

        async def work(connection: AsyncConnection) -> tuple[int, Span | None]:
            window = await next_span(connection, span, None, size=size)
            if window is None:
                return 0, None
            condition = and_(window.condition, old)
            if archive is not None:
                # Locked: an operator may replay one of them at this moment.
                found = await connection.execute(select(OUTBOX).where(condition).with_for_update())
                await hand_over(archive, [outbox_row(row, payload=True) for row in found])
            number = (await connection.execute(delete(OUTBOX).where(condition))).rowcount
            if number:
                await trail.note(connection, deleted=deleted + number, before=cutoff.isoformat())
            return number, Span(window.last + 1, span.last)

        while True:
            number, rest = await self._transact(work)
            trail.kept()
            deleted += number
            if progress is not None:
                progress(deleted)
            if rest is None:
                return deleted
            span = rest

    async def _plan(self, connection: AsyncConnection, older_than: timedelta) -> tuple[Any, Span]:
        line = self._database.later(-older_than.total_seconds())
        cutoff = await connection.scalar(select(type_coerce(line, UtcDateTime)))
        # Nothing is sent before it is created: what is younger need not be looked at.
        return cutoff, await bounds(connection, OutboxFilter(until=cutoff))


async def hand_over(archive: Archive, rows: Sequence[Mapping[str, Any]]) -> None:
    """Give rows to the archive, which may be a coroutine function."""
    if rows:
        result = archive(rows)
        if inspect.isawaitable(result):
            await result
