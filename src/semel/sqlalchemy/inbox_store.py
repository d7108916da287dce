"""The operator's side of the inbox table; every call is its own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, delete, func, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from semel.errors import ConfigurationError
from semel.operations import Count, InboxFilter, Page
from semel.operations.rows import inbox_row
from semel.protocols.stores import Archive, Deleted
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.gate import INBOX
from semel.sqlalchemy.inbox import old_records
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_cleanup import ARCHIVED_AT_ONCE, hand_over
from semel.sqlalchemy.paging import NewestFirst, encode
from semel.sqlalchemy.tables import InboxRecord
from semel.states import InboxStats, InboxStatus

_SCANNED = 50_000
_WINDOW, _WINDOWS = 10_000, 5
_KEY = (INBOX.c.tenant_id, INBOX.c.consumer_name, INBOX.c.message_id)
_ORDER = NewestFirst(INBOX.c.processed_at, *_KEY)


class SqlAlchemyInboxStore(OperatorSide):
    """Looks at inbox records, and removes them."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self._engine = engine.execution_options(**self._database.own_transaction_options)

    async def get(
        self, message_id: str, *, consumer_name: str, tenant_id: str = "default"
    ) -> InboxRecord | None:
        """Return the record, or None."""
        async with AsyncSession(self._reader) as session:
            return await session.get(InboxRecord, (tenant_id, consumer_name, message_id))

    async def search(
        self, where: InboxFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> Page[InboxRecord, str]:
        """Newest first; page on with *before* = the page's `next` until it is None."""
        limit = max(1, min(limit, 1000))
        where = where or InboxFilter()
        asked = _conditions(where)
        times = _conditions(where, only=("since", "until"))
        place = None if before is None else _ORDER.find(before)
        found: list[InboxRecord] = []
        async with AsyncSession(self._reader) as session:
            for _ in range(_WINDOWS):
                below = [
                    INBOX.c.processed_at.is_not(None) if place is None else _ORDER.behind(place),
                    *times,
                ]
                # Up to where this step looks: the table may be large, and few records match.
                edge = (
                    await session.execute(
                        _ORDER.sort(select(*_ORDER.columns).where(*below))
                        .offset(_WINDOW - 1)
                        .limit(1)
                    )
                ).one_or_none()
                window = [] if edge is None else [INBOX.c.processed_at >= edge[0]]
                rows = await session.scalars(
                    _ORDER.sort(select(InboxRecord).where(*below, *window, *asked)).limit(
                        limit - len(found)
                    )
                )
                found += rows
                if len(found) == limit:
                    return Page(found, next=encode(_ORDER.place(found[-1])))
                if edge is None:
                    return Page(found)
                # The window ended within records of the same moment: all of them were looked at.
                place = _ORDER.end_of(edge[0])
        return Page(found, next=None if place is None else encode(place))

    async def count(self, where: InboxFilter | None = None, *, cap: int = 10_000) -> Count:
        """Count matching records, up to *cap*."""
        where = where or InboxFilter()
        names = {"since": "processed_at", "until": "processed_at"}
        columns = {names.get(name, name) for name in where.criteria()} | {"message_id"}
        times = _conditions(where, only=names)
        some = select(*(INBOX.c[name] for name in sorted(columns))).where(*times)
        rows = self._newest(some).subquery("newest")
        matches = case((and_(true(), *_conditions(where, rows.c)), 1), else_=0)
        counts = select(func.count(), func.coalesce(func.sum(matches), 0)).select_from(rows)
        async with self._reader.connect() as connection:
            seen, number = (await connection.execute(counts)).one()
        return Count(min(int(number), cap), seen >= _SCANNED or number > cap)

    async def stats(self) -> Sequence[InboxStats]:
        """Per consumer: how many records by status, and the oldest of them."""
        columns = INBOX.c["consumer_name", "status", "received_at", "attempts"]
        rows = self._newest(select(*columns)).subquery("newest")
        again = func.sum(case((rows.c.attempts > 1, 1), else_=0))
        groups = (
            select(
                rows.c.consumer_name,
                rows.c.status,
                func.count(),
                func.min(rows.c.received_at),
                again,
            )
            .group_by(rows.c.consumer_name, rows.c.status)
            .order_by(rows.c.consumer_name)
        )
        async with self._reader.connect() as connection:
            found = (await connection.execute(groups)).all()
        capped = sum(row[2] for row in found) >= _SCANNED
        by_name: dict[str, list[Any]] = {}
        for row in found:
            by_name.setdefault(row[0], []).append(row)
        return [
            InboxStats(
                consumer_name=name,
                counts={InboxStatus(row[1]): row[2] for row in group},
                oldest=min(row[3] for row in group),
                redelivered=sum(int(row[4]) for row in group),
                capped=capped,
            )
            for name, group in by_name.items()
        ]

    def _newest(self, query: Select[Any]) -> Select[Any]:
        some = query.order_by(INBOX.c.processed_at.desc()).limit(_SCANNED)
        return self._database.by_index(some, INBOX, "ix_inbox_processed_at")

    async def forget(
        self,
        message_id: str,
        *,
        consumer_name: str,
        tenant_id: str = "default",
        actor: str = "unknown",
    ) -> bool:
        """Allow the message to be processed again; False if it was not there."""
        key = (tenant_id, consumer_name, message_id)
        trail = Trail(actor=actor, action="inbox.forget", target=message_id)

        async def work(connection: AsyncConnection) -> bool:
            ours = and_(*(column == value for column, value in zip(_KEY, key, strict=True)))
            if not (await connection.execute(delete(INBOX).where(ours))).rowcount:
                return False
            await trail.note(connection, consumer_name=consumer_name, tenant_id=tenant_id)
            return True

        return await self._transact(work)

    async def cleanup(
        self,
        *,
        older_than: timedelta,
        consumer_name: str | None = None,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
        archive: Archive | None = None,
        progress: Deleted | None = None,
        actor: str = "retention",
    ) -> int:
        """Delete PROCESSED records older than that, in transactions of at most *batch_size*.

        So are counters of attempts (RECEIVED) as old as that; DEAD and PARKED records stay.
        """
        if batch_size < 1:
            raise ConfigurationError("batch_size must be at least 1")
        condition = old_records(self._database.later(-older_than.total_seconds()))
        if consumer_name is not None:
            condition = and_(condition, INBOX.c.consumer_name == consumer_name)
        if tenant_id is not None:
            condition = and_(condition, INBOX.c.tenant_id == tenant_id)
        size = batch_size if archive is None else min(batch_size, ARCHIVED_AT_ONCE)
        trail = Trail(actor=actor, action="inbox.cleanup", target=consumer_name)
        total = 0

        async def work(connection: AsyncConnection) -> int:
            if archive is None:
                statement = self._database.delete_some(INBOX, condition, limit=size)
            else:
                oldest = select(INBOX).where(condition).order_by(INBOX.c.processed_at)
                found = (await connection.execute(oldest.limit(size).with_for_update())).all()
                if not found:
                    return 0
                await hand_over(archive, [inbox_row(row, payload=True) for row in found])
                keys = [(row.tenant_id, row.consumer_name, row.message_id) for row in found]
                statement = delete(INBOX).where(tuple_(*_KEY).in_(keys), condition)
            removed = int((await connection.execute(statement)).rowcount)
            if removed:
                await trail.note(connection, deleted=total + removed)
            return removed

        while True:
            removed = await self._transact(work)
            trail.kept()
            total += removed
            if progress is not None:
                progress(total)
            if removed < size:
                return total


def _conditions(
    where: InboxFilter, columns: Any = INBOX.c, *, only: Any = None
) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for name, value in where.criteria().items():
        if only is not None and name not in only:
            continue
        if name == "since":
            found.append(columns.processed_at >= value)
        elif name == "until":
            found.append(columns.processed_at < value)
        elif name == "reason":
            found.append(columns.reason.icontains(value, autoescape=True))
        else:
            found.append(columns[name] == value)
    return found
