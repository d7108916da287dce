"""The projector's side of the outbox table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    case,
    delete,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.envelope import MessageEnvelope
from semel.relay import Entry, Failure, Instance, Key, Read, Survey
from semel.sqlalchemy.connection import KeptConnection
from semel.sqlalchemy.dialects import RowColumns
from semel.sqlalchemy.failures import FailureStatements
from semel.sqlalchemy.layout import DEAD_BLOCKING, DEAD_RELEASED, HOT, PARKED, SCHEDULED
from semel.sqlalchemy.leases import SqlAlchemyLeases
from semel.sqlalchemy.tables import OutboxLease, OutboxRecord
from semel.sqlalchemy.wakeup import WakeUp
from semel.states import OutboxStatus

_outbox = cast("Table", OutboxRecord.__table__)
_lease = cast("Table", OutboxLease.__table__)
_PROMOTE_AT_ONCE = 1000
_DEAD_LANES = (DEAD_BLOCKING, DEAD_RELEASED)


class SqlAlchemyRelayStore(SqlAlchemyLeases):
    """Reads lanes and moves rows; leases come from the base class."""

    def __init__(self, engine: AsyncEngine, *, notify: bool = True) -> None:
        super().__init__(engine)
        options = {} if self._database.fetch_is_constant else {"compiled_cache": None}
        self._reader = KeptConnection(engine, **options)
        self._writer = KeptConnection(engine)
        self._wakeup = WakeUp(engine, notify=notify)
        self._columns = RowColumns(self._list_columns(), engine.dialect)
        self._failures = FailureStatements(self._database)

    async def fetch(
        self,
        reads: Sequence[Read],
        *,
        tenant_id: str | None = None,
        skip_topics: Collection[str] = (),
        skip_tenants: Collection[str] = (),
    ) -> Sequence[Entry]:
        """Return unsent rows of the lanes above their floors, lowest first."""
        async with self._reader.use() as connection:
            rows = await self._database.fetch_lanes(
                connection,
                self._columns,
                reads,
                tenant_id=tenant_id,
                skip_topics=skip_topics,
                skip_tenants=skip_tenants,
            )
        return [_entry(row) for row in rows]

    def _list_columns(self) -> list[ColumnElement[Any]]:
        column = _outbox.c
        return [
            column.sequence,
            column.partition_no,
            column.status,
            column.retry_count,
            self._database.seconds_until(column.retry_after).label("wait"),
            column.id,
            column.topic,
            column.event_type,
            column.tenant_id,
            column.order_key,
            column.aggregate_id,
            column.aggregate_type,
            column.routing_key,
            column.schema_id,
            column.schema_version,
            column.occurred_at,
            self._database.as_text(column.event_metadata).label("metadata_text"),
            self._database.as_text(column.payload).label("payload_text"),
            column.payload_bytes,
            column.content_type,
            case(
                (column.available_at > column.created_at, column.available_at),
                else_=column.created_at,
            ).label("due_at"),
        ]

    async def busy(self, partitions: Collection[int]) -> Collection[int]:
        """Return the partitions with writers whose rows may be invisible yet."""
        async with self._reader.use() as connection:
            return await self._database.busy_partitions(connection, partitions)

    async def survey(self, partitions: Collection[int]) -> Survey:
        """Return blocked keys; revive DEAD rows that plain SQL made NEW."""
        lanes = [number + base for number in partitions for base in _DEAD_LANES]
        async with self._writer.use() as connection:
            revived = await connection.execute(
                update(_outbox)
                .where(_outbox.c.lane.in_(lanes), _outbox.c.status != OutboxStatus.DEAD.value)
                .values(lane=_outbox.c.partition_no, retry_after=null())
            )
            found = await connection.execute(
                select(_outbox.c.tenant_id, _outbox.c.order_key)
                .where(
                    _outbox.c.lane.in_([number + DEAD_BLOCKING for number in partitions]),
                    _outbox.c.order_key.is_not(None),
                )
                .distinct()
            )
            blocked = {(tenant, key) for tenant, key in found}
        return Survey(blocked=blocked, revived=revived.rowcount)

    async def promote(
        self, partitions: Collection[int], *, tenant_id: str | None = None
    ) -> tuple[Mapping[int, int], float | None]:
        """Move scheduled rows that are due to the hot lane."""
        waiting = self._in_lanes(partitions, SCHEDULED, tenant_id)
        wait = self._database.seconds_until(_outbox.c.available_at)
        moved: dict[int, int] = {}
        # Not behind an acknowledgement: what is read next waits for this.
        async with self._reader.use() as connection:
            rows = (
                await connection.execute(
                    select(_outbox.c.sequence, _outbox.c.partition_no, wait)
                    .where(waiting)
                    .order_by(_outbox.c.available_at)
                    .limit(_PROMOTE_AT_ONCE)
                )
            ).all()
            due = [row for row in rows if row[2] is None or row[2] <= 0]
            if due:
                await connection.execute(
                    update(_outbox)
                    .where(_outbox.c.sequence.in_([row[0] for row in due]), waiting)
                    .values(lane=_outbox.c.partition_no)
                )
            for sequence, number, _ in due:
                moved[number] = min(sequence, moved.get(number, sequence))
        later = [float(row[2]) for row in rows if row[2] is not None and row[2] > 0]
        if len(due) == _PROMOTE_AT_ONCE:
            return moved, 0.0
        return moved, later[0] if later else None

    async def acknowledge(self, sequences: Sequence[int], *, keep: bool) -> int:
        """Mark rows SENT, or delete them."""
        ours = and_(
            self._database.is_any(_outbox.c.sequence, sequences), _outbox.c.lane.is_not(None)
        )
        statement: Any
        if keep:
            statement = (
                update(_outbox)
                .where(ours)
                .values(status=OutboxStatus.SENT.value, lane=null(), sent_at=self._database.now())
            )
        else:
            statement = delete(_outbox).where(ours)
        async with self._writer.use() as connection:
            result = await connection.execute(statement)
        return int(result.rowcount)

    async def begin(
        self,
        instance: Instance,
        entries: Sequence[Entry],
        *,
        count: bool = False,
        retry_in: float = 0.0,
    ) -> None:
        """Write PUBLISHING over NEW or FAILED."""
        statuses = [OutboxStatus.NEW.value, OutboxStatus.FAILED.value]
        if count:
            statuses.append(OutboxStatus.PUBLISHING.value)
        values: dict[str, Any] = {
            "status": OutboxStatus.PUBLISHING.value,
            "last_attempt_at": self._database.now(),
        }
        if count:
            values["retry_count"] = _outbox.c.retry_count + 1
            values["retry_after"] = self._database.later(retry_in)
        async with self._writer.use() as connection:
            await connection.execute(
                update(_outbox)
                .where(
                    _outbox.c.sequence.in_([entry.sequence for entry in entries]),
                    _outbox.c.status.in_(statuses),
                    _outbox.c.lane.is_not(None),
                )
                .values(values)
            )

    async def fail(
        self, instance: Instance, epochs: Mapping[int, int], failures: Sequence[Failure]
    ) -> Collection[int]:
        """Store FAILED and DEAD under the lease."""
        concerned = {failure.entry.partition for failure in failures} & set(epochs)
        epochs = {number: epochs[number] for number in concerned}
        async with self._transactions.begin() as connection:
            held = await self._held(connection, instance, epochs)
            ours = [failure for failure in failures if failure.entry.partition in held]
            return await self._failures.store(connection, ours)

    async def _held(
        self, connection: AsyncConnection, instance: Instance, epochs: Mapping[int, int]
    ) -> set[int]:
        """Return the partitions that are still ours, locked so that nobody takes them now."""
        rows = await connection.execute(
            select(_lease.c.partition_no, _lease.c.epoch)
            .where(
                _lease.c.scope == instance.scope,
                _lease.c.owner == instance.id,
                _lease.c.partition_no.in_(list(epochs)),
            )
            .with_for_update(read=True, key_share=True)
        )
        return {number for number, epoch in rows if epochs.get(number) == epoch}

    async def park(
        self, instance: Instance, epochs: Mapping[int, int], sequences: Collection[int]
    ) -> None:
        """Move rows behind a blocked key out of the hot lane."""
        if not sequences:
            return
        async with self._transactions.begin() as connection:
            held = await self._held(connection, instance, epochs)
            await connection.execute(
                update(_outbox)
                .where(
                    _outbox.c.sequence.in_(list(sequences)),
                    _outbox.c.lane.in_([number + HOT for number in held]),
                )
                .values(lane=_outbox.c.partition_no + PARKED)
            )

    async def unpark(
        self,
        partitions: Collection[int],
        *,
        blocked: Collection[Key],
        tenant_id: str | None = None,
    ) -> int:
        """Move parked rows back to the hot lane, but for those of blocked keys."""
        condition = self._in_lanes(partitions, PARKED, tenant_id)
        if blocked:
            pair = tuple_(_outbox.c.tenant_id, _outbox.c.order_key)
            condition = and_(
                condition, or_(_outbox.c.order_key.is_(None), pair.not_in(list(blocked)))
            )
        async with self._writer.use() as connection:
            result = await connection.execute(
                update(_outbox).where(condition).values(lane=_outbox.c.partition_no)
            )
        return int(result.rowcount)

    def _in_lanes(
        self, partitions: Collection[int], base: int, tenant_id: str | None
    ) -> ColumnElement[bool]:
        numbers = [number + base for number in partitions]
        lanes = self._database.is_any(_outbox.c.lane, numbers)
        return lanes if tenant_id is None else and_(lanes, _outbox.c.tenant_id == tenant_id)

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* soon after commits of events."""
        return self._wakeup.subscribe(wake)

    async def close(self) -> None:
        """Close the connections that are kept."""
        await self._wakeup.close()
        for kept in (self._reader, self._writer, self._pulse, self._transactions):
            await kept.close()


def _entry(row: Any) -> Entry:
    (
        sequence,
        partition,
        status,
        attempts,
        wait,
        event_id,
        topic,
        event_type,
        tenant_id,
        order_key,
        aggregate_id,
        aggregate_type,
        routing_key,
        schema_id,
        schema_version,
        occurred_at,
        metadata_text,
        payload_text,
        payload_bytes,
        content_type,
        due_at,
    ) = row
    fields = {
        "topic": topic,
        "event_type": event_type,
        "event_id": event_id,
        "tenant_id": tenant_id,
        "key": order_key,
        "aggregate_id": aggregate_id,
        "aggregate_type": aggregate_type,
        "routing_key": routing_key,
        "schema_id": schema_id,
        "schema_version": schema_version,
        "source": None,
        "occurred_at": occurred_at,
        "metadata_json": metadata_text,
        "content_type": content_type,
    }
    if payload_bytes is None:
        fields["document"] = payload_text
    else:
        fields["body"] = payload_bytes
    return Entry(
        sequence,
        partition,
        status,
        attempts,
        None if wait is None else float(wait),  # a Decimal on some databases
        None if order_key is None else (tenant_id, order_key),
        MessageEnvelope.restore(fields),
        due_at,
    )
