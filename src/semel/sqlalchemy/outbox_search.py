"""Looking at outbox rows, a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, case, func, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from semel.operations import BlockedKey, Count, OutboxFilter, Page
from semel.operations.rows import outbox_row
from semel.sqlalchemy.layout import DEAD_BLOCKING, PARKED, PARTITIONS
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import (
    OUTBOX,
    Lanes,
    Span,
    bounds,
    columns_of,
    conditions,
    lanes_of,
    last_span,
    next_span,
)
from semel.sqlalchemy.tables import OutboxRecord

#: So many rows are looked at by one count, or for one figure.
SCANNED = 50_000
# A search looks at so many rows in so many steps: where few match, the page is short.
_WINDOW, _WINDOWS = 10_000, 10
_BLOCKING = Lanes(DEAD_BLOCKING, DEAD_BLOCKING + PARTITIONS - 1)
_WAITING = (Lanes(0, PARKED - 1), Lanes(PARKED, PARKED + PARTITIONS - 1))


class OutboxSearch(OperatorSide):
    """The questions about single rows, and about those that match a filter."""

    async def get(self, event_id: str) -> OutboxRecord | None:
        """Return the row, or None."""
        async with AsyncSession(self._reader) as session:
            return await session.scalar(select(OutboxRecord).where(OutboxRecord.id == event_id))

    async def search(
        self, where: OutboxFilter | None = None, *, before: int | None = None, limit: int = 50
    ) -> Page[OutboxRecord, int]:
        """Newest first; page on with *before* = the page's `next` until it is None."""
        where = where or OutboxFilter()
        limit = max(1, min(limit, 1000))
        async with AsyncSession(self._reader) as session:
            span = await bounds(await session.connection(), where)
            if before is not None:
                span = Span(span.first, min(span.last, before - 1))
            lanes = lanes_of(where)
            if lanes is None or await _are_many(session, lanes):
                return await _search_windows(session, where, span, limit)
            return await _search_lanes(session, where, span, lanes, limit)

    async def count(self, where: OutboxFilter | None = None, *, cap: int = 10_000) -> Count:
        """Count matching rows, up to *cap*."""
        where = where or OutboxFilter()
        lanes = lanes_of(where)
        async with self._reader.connect() as connection:
            span = await bounds(connection, where)
            some = select(OUTBOX.c.sequence, *columns_of(where))
            if lanes is not None:
                some = some.where(lanes.condition)
            else:
                some = some.where(span.condition).order_by(OUTBOX.c.sequence.desc())
            rows = some.limit(SCANNED).subquery("some")
            matches = case((and_(true(), *conditions(where, rows.c)), 1), else_=0)
            counts = select(func.count(), func.coalesce(func.sum(matches), 0)).select_from(rows)
            seen, number = (await connection.execute(counts)).one()
        return Count(min(int(number), cap), seen >= SCANNED or number > cap)

    async def blocked_keys(
        self, *, tenant_id: str | None = None, limit: int = 50
    ) -> Sequence[BlockedKey]:
        """List keys behind a DEAD event, those blocked first of all, and how many rows wait."""
        async with self._reader.connect() as connection:
            pair = (OUTBOX.c.tenant_id, OUTBOX.c.order_key)
            rows = select(*pair, OUTBOX.c.sequence).where(_BLOCKING.condition).limit(SCANNED)
            dead = rows.subquery("dead")
            keys = (
                select(dead.c.tenant_id, dead.c.order_key, func.min(dead.c.sequence), func.count())
                .where(dead.c.order_key.is_not(None))
                .group_by(dead.c.tenant_id, dead.c.order_key)
                .order_by(func.min(dead.c.sequence))
                .limit(max(1, min(limit, 1000)))
            )
            if tenant_id is not None:
                keys = keys.where(dead.c.tenant_id == tenant_id)
            blocked = (await connection.execute(keys)).all()
            first = await connection.execute(
                select(OUTBOX).where(OUTBOX.c.sequence.in_([row[2] for row in blocked]))
            )
            heads = {row.sequence: row for row in first}
            waiting: dict[tuple[str, str], int] = {}
            capped = False
            for lanes in _WAITING if blocked else ():
                behind = select(*pair).where(lanes.condition).limit(SCANNED).subquery("behind")
                key_of = (behind.c.tenant_id, behind.c.order_key)
                groups = select(*key_of, func.count()).group_by(*key_of)
                seen = 0
                for tenant, key, number in await connection.execute(groups):
                    seen += number
                    waiting[tenant, key] = waiting.get((tenant, key), 0) + number
                capped = capped or seen >= SCANNED
        return [
            BlockedKey(
                tenant_id=tenant,
                key=key,
                event_id=heads[head].id,
                topic=heads[head].topic,
                since=heads[head].last_attempt_at,
                error=heads[head].error_message,
                dead=number,
                waiting=Count(waiting.get((tenant, key), 0), capped),
            )
            for tenant, key, head, number in blocked
            if head in heads
        ]

    async def export(
        self, where: OutboxFilter | None = None, *, payload: bool = False, batch_size: int = 500
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield matching rows as JSON-ready dicts, oldest first."""
        where = where or OutboxFilter()
        lanes, asked = lanes_of(where), conditions(where)
        size = max(1, min(batch_size, 10_000))
        async with self._reader.connect() as connection:
            span = await bounds(connection, where)
        while True:
            # A connection per batch: whoever reads slowly keeps no transaction open.
            async with AsyncSession(self._reader) as session:
                window = await next_span(await session.connection(), span, lanes, size=_WINDOW)
                if window is None:
                    return
                found = await session.scalars(
                    select(OutboxRecord)
                    .where(window.condition, *asked)
                    .order_by(OutboxRecord.sequence)
                    .limit(size)
                )
                rows = [(row.sequence, outbox_row(row, payload=payload)) for row in found]
            for _, row in rows:
                yield row
            done = rows[-1][0] if len(rows) == size else window.last
            span = Span(done + 1, span.last)


async def _search_windows(
    session: AsyncSession, where: OutboxFilter, span: Span, limit: int
) -> Page[OutboxRecord, int]:
    """Look at the table itself, from the newest row down."""
    lanes, asked = lanes_of(where), conditions(where)
    connection = await session.connection()
    found: list[OutboxRecord] = []
    for _ in range(_WINDOWS):
        window = await last_span(connection, span, lanes, size=_WINDOW)
        if window is None:
            return Page(found)
        found += await session.scalars(
            select(OutboxRecord)
            .where(window.condition, *asked)
            .order_by(OutboxRecord.sequence.desc())
            .limit(limit - len(found))
        )
        rest = found[-1].sequence if len(found) == limit else window.first
        if rest <= span.first:
            return Page(found)
        if len(found) == limit:
            return Page(found, next=rest)
        span = Span(span.first, rest - 1)
    return Page(found, next=span.last + 1)


async def _search_lanes(
    session: AsyncSession, where: OutboxFilter, span: Span, lanes: Lanes, limit: int
) -> Page[OutboxRecord, int]:
    """Look at all rows of lanes that hold few."""
    rows = select(OUTBOX.c.sequence, *columns_of(where)).where(lanes.condition)
    some = rows.limit(SCANNED).subquery("some")
    numbers = await session.scalars(
        select(some.c.sequence)
        .where(some.c.sequence.between(*span), *conditions(where, some.c))
        .order_by(some.c.sequence.desc())
        .limit(limit + 1)
    )
    chosen = list(numbers)
    found = await session.scalars(
        select(OutboxRecord)
        .where(OutboxRecord.sequence.in_(chosen[:limit]))
        .order_by(OutboxRecord.sequence.desc())
    )
    return Page(found, next=chosen[limit - 1] if len(chosen) > limit else None)


async def _are_many(session: AsyncSession, lanes: Lanes) -> bool:
    some = select(OUTBOX.c.lane).where(lanes.condition).limit(SCANNED).subquery("some")
    return (await session.scalar(select(func.count()).select_from(some)) or 0) >= SCANNED
