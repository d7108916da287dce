"""The operator's side of the outbox table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import Table, and_, delete, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from semel.envelope import check_name, check_tenant
from semel.errors import ConfigurationError
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import (
    DEAD_BLOCKING,
    DEAD_RELEASED,
    HOT,
    PARKED,
    SCHEDULED,
)
from semel.sqlalchemy.leases import read_control, relay_engine
from semel.sqlalchemy.tables import OutboxControl, OutboxRecord
from semel.states import OutboxStats, OutboxStatus, Pause

_outbox = cast("Table", OutboxRecord.__table__)
_control = cast("Table", OutboxControl.__table__)
_CHUNK = 1000


class SqlAlchemyOutboxStore:
    """Looks at outbox rows and repairs them; projectors notice within a heartbeat."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = relay_engine(engine)
        self._reader = self._engine.execution_options(semel_read_only=True)
        self._database = database_of(engine.dialect)

    async def get(self, event_id: str) -> OutboxRecord | None:
        """Return the row, or None."""
        async with AsyncSession(self._reader) as session:
            return await session.scalar(select(OutboxRecord).where(OutboxRecord.id == event_id))

    async def search(
        self,
        *,
        status: OutboxStatus | None = None,
        topic: str | None = None,
        tenant_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[OutboxRecord]:
        """Newest first; page with *before* = the last row's `sequence`."""
        statement = select(OutboxRecord).order_by(OutboxRecord.sequence.desc())
        if status is not None:
            statement = statement.where(OutboxRecord.status == status.value)
        if topic is not None:
            statement = statement.where(OutboxRecord.topic == topic)
        if tenant_id is not None:
            statement = statement.where(OutboxRecord.tenant_id == tenant_id)
        if before is not None:
            statement = statement.where(OutboxRecord.sequence < before)
        async with AsyncSession(self._reader) as session:
            return list(await session.scalars(statement.limit(max(1, min(limit, 1000)))))

    async def stats(self, *, tenant_id: str | None = None) -> OutboxStats:
        """Counts by status and the age of the oldest unsent row."""
        ours = _outbox.c.tenant_id == tenant_id if tenant_id is not None else None
        async with self._reader.connect() as connection:
            counts_query = select(_outbox.c.status, func.count()).group_by(_outbox.c.status)
            lanes_query = (
                select(_outbox.c.lane, func.count())
                .where(_outbox.c.lane.between(PARKED, DEAD_RELEASED - 1))
                .group_by(_outbox.c.lane)
            )
            age = self._database.seconds_until(func.min(_outbox.c.created_at))
            age_query = select(age).where(_outbox.c.lane < DEAD_BLOCKING)
            if ours is not None:
                counts_query = counts_query.where(ours)
                lanes_query = lanes_query.where(ours)
                age_query = age_query.where(ours)
            counts = {
                OutboxStatus(row[0]): row[1] for row in await connection.execute(counts_query)
            }
            lanes = {row[0]: row[1] for row in await connection.execute(lanes_query)}
            oldest = await connection.scalar(age_query)
        return OutboxStats(
            counts={status: counts.get(status, 0) for status in OutboxStatus},
            oldest_unsent_seconds=None if oldest is None else max(0.0, -float(oldest)),
            blocked_keys=sum(n for lane, n in lanes.items() if lane >= DEAD_BLOCKING),
            scheduled=sum(n for lane, n in lanes.items() if SCHEDULED <= lane < DEAD_BLOCKING),
            parked=sum(n for lane, n in lanes.items() if lane < SCHEDULED),
        )

    async def requeue(self, event_ids: Sequence[str]) -> int:
        """DEAD to NEW, with no attempts counted."""
        values = {
            "status": OutboxStatus.NEW.value,
            "retry_count": 0,
            "retry_after": null(),
            "lane": _outbox.c.partition_no + HOT,
        }
        return await self._change(
            event_ids, lambda ours: update(_outbox).where(ours).values(values)
        )

    async def release(self, event_ids: Sequence[str]) -> int:
        """Leave the rows DEAD, but let their keys go on."""
        lane = _outbox.c.partition_no + DEAD_RELEASED
        return await self._change(
            event_ids,
            lambda ours: (
                update(_outbox).where(ours, _outbox.c.lane < DEAD_RELEASED).values(lane=lane)
            ),
        )

    async def drop(self, event_ids: Sequence[str]) -> int:
        """Delete DEAD rows for good."""
        return await self._change(event_ids, lambda ours: delete(_outbox).where(ours))

    async def _change(self, event_ids: Sequence[str], statement: Callable[[Any], Any]) -> int:
        changed = 0
        for start in range(0, len(event_ids), _CHUNK):
            chunk = list(event_ids[start : start + _CHUNK])
            ours = and_(_outbox.c.id.in_(chunk), _outbox.c.status == OutboxStatus.DEAD.value)
            async with self._engine.begin() as connection:
                result = await connection.execute(statement(ours))
                changed += result.rowcount
                await self._announce(connection)
        return changed

    async def _announce(self, connection: AsyncConnection) -> None:
        """Tell projectors to look at everything again; they read this at each heartbeat."""
        current = await connection.scalar(
            select(_control.c.value).where(_control.c.name == "operations").with_for_update()
        )
        await connection.execute(
            update(_control)
            .where(_control.c.name == "operations")
            .values(value=int(current or 0) + 1)
        )

    async def pause(
        self, *, topic: str | None = None, tenant_id: str | None = None, reason: str | None = None
    ) -> None:
        """Hold back everything, one topic or one tenant, until resumed."""
        _check_pause(topic, tenant_id)
        item = {
            "topic": topic,
            "tenant_id": tenant_id,
            "since": datetime.now(UTC).isoformat(),
            "reason": reason,
        }
        async with self._engine.begin() as connection:
            others = _without(await self._lock_pauses(connection), topic, tenant_id)
            await self._store_pauses(connection, [*others, item])

    async def resume(self, *, topic: str | None = None, tenant_id: str | None = None) -> bool:
        """End a pause; False if there was none."""
        _check_pause(topic, tenant_id)
        async with self._engine.begin() as connection:
            stored = await self._lock_pauses(connection)
            others = _without(stored, topic, tenant_id)
            if len(others) < len(stored):
                await self._store_pauses(connection, others)
        return len(others) < len(stored)

    async def pauses(self) -> Sequence[Pause]:
        """List what is paused."""
        async with self._reader.connect() as connection:
            pauses, _ = await read_control(connection)
        return pauses

    async def _lock_pauses(self, connection: AsyncConnection) -> list[dict[str, Any]]:
        query = select(_control.c.value).where(_control.c.name == "pauses").with_for_update()
        return await connection.scalar(query) or []

    async def _store_pauses(
        self, connection: AsyncConnection, pauses: list[dict[str, Any]]
    ) -> None:
        await connection.execute(
            update(_control).where(_control.c.name == "pauses").values(value=pauses)
        )
        await self._announce(connection)

    async def cleanup(
        self, *, older_than: timedelta, tenant_id: str | None = None, batch_size: int = 10_000
    ) -> int:
        """Delete rows SENT before that, in bounded batches along the primary key."""
        if batch_size < 1:
            raise ConfigurationError("batch_size must be at least 1")
        cutoff = self._database.later(-older_than.total_seconds())
        deleted, position = 0, 0
        while True:
            async with self._engine.begin() as connection:
                window = (
                    select(_outbox.c.sequence)
                    .where(_outbox.c.sequence > position)
                    .order_by(_outbox.c.sequence)
                    .limit(batch_size)
                    .subquery()
                )
                last = await connection.scalar(select(func.max(window.c.sequence)))
                if last is None:
                    return deleted
                condition = and_(
                    _outbox.c.sequence > position,
                    _outbox.c.sequence <= last,
                    _outbox.c.status == OutboxStatus.SENT.value,
                    _outbox.c.lane.is_(None),
                    _outbox.c.sent_at < cutoff,
                )
                if tenant_id is not None:
                    condition = and_(condition, _outbox.c.tenant_id == check_tenant(tenant_id))
                result = await connection.execute(delete(_outbox).where(condition))
                deleted += result.rowcount
                position = last


def _without(
    pauses: list[dict[str, Any]], topic: str | None, tenant_id: str | None
) -> list[dict[str, Any]]:
    return [
        item for item in pauses if (item.get("topic"), item.get("tenant_id")) != (topic, tenant_id)
    ]


def _check_pause(topic: str | None, tenant_id: str | None) -> None:
    if topic is not None and tenant_id is not None:
        raise ConfigurationError("pause a topic or a tenant, not both at once")
    if topic is not None:
        check_name("topic", topic)
    if tenant_id is not None:
        check_tenant(tenant_id)
