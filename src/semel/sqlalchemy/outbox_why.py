"""Gathering what there is to say about one event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.operations.why import Facts, Other, Why, explain
from semel.sqlalchemy.layout import (
    DEAD_BLOCKING,
    DEAD_RELEASED,
    HOT,
    PARKED,
    SCHEDULED,
)
from semel.sqlalchemy.leases import read_control
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import OUTBOX
from semel.sqlalchemy.outbox_search import SCANNED
from semel.sqlalchemy.tables import OutboxLease
from semel.sqlalchemy.workers import read_leases, read_workers
from semel.states import OutboxStatus

_lease = cast("Table", OutboxLease.__table__)
_ENDED = (OutboxStatus.SENT, OutboxStatus.DEAD)


class OutboxReasons(OperatorSide):
    """Answers why."""

    async def why(self, event_id: str) -> Why | None:
        """Say why the event is where it is; None if it is not there."""
        column = OUTBOX.c
        query = select(
            column.sequence,
            column.tenant_id,
            column.topic,
            column.order_key,
            column.partition_no,
            column.lane,
            column.status,
            column.retry_count,
            column.error_message,
            column.sent_at,
            column.last_attempt_at,
            column.available_at,
            column.retry_after,
            self._database.seconds_until(column.available_at).label("available_in"),
            self._database.seconds_until(column.retry_after).label("retry_in"),
        ).where(column.id == event_id)
        async with self._reader.connect() as connection:
            row: Any = (await connection.execute(query)).one_or_none()
            if row is None:
                return None
            facts = dict(_facts(row), event_id=event_id)
            if row.status not in _ENDED:
                facts |= await self._surroundings(connection, row)
        return explain(Facts(**facts))

    async def _surroundings(self, connection: AsyncConnection, row: Any) -> dict[str, Any]:
        pauses, _ = await read_control(connection)
        leases = await read_leases(connection, _lease.c.partition_no == row.partition_no)
        found: dict[str, Any] = {
            "pauses": pauses,
            "leases": leases,
            "workers": await read_workers(connection, leases),
        }
        if row.order_key is not None:
            found["blocker"] = await _first(connection, row, [row.partition_no + DEAD_BLOCKING])
            if found["blocker"] is None:
                lanes = [row.partition_no + HOT, row.partition_no + PARKED]
                found["ahead"] = await _first(connection, row, lanes, before=row.sequence)
        return found


def _facts(row: Any) -> dict[str, Any]:
    lane = -1 if row.lane is None else row.lane
    return {
        "tenant_id": row.tenant_id,
        "topic": row.topic,
        "key": row.order_key,
        "partition": row.partition_no,
        "status": OutboxStatus(row.status),
        "attempts": row.retry_count,
        "error": row.error_message,
        "sent_at": row.sent_at,
        "last_attempt_at": row.last_attempt_at,
        "available_at": row.available_at,
        "available_in": None if row.available_in is None else float(row.available_in),
        "retry_at": row.retry_after,
        "retry_in": None if row.retry_in is None else float(row.retry_in),
        "blocks_its_key": DEAD_BLOCKING <= lane < DEAD_RELEASED,
        "is_scheduled": SCHEDULED <= lane < DEAD_BLOCKING,
    }


async def _first(
    connection: AsyncConnection, row: Any, lanes: Sequence[int], before: int | None = None
) -> Other | None:
    """Return the first event of the row's key in these lanes, among a bounded number."""
    column = OUTBOX.c
    numbers: list[int] = []
    for lane in lanes:
        some = select(column.sequence, column.tenant_id, column.order_key)
        some = some.where(column.lane == lane)
        if before is not None:
            some = some.where(column.sequence < before)
        rows = some.order_by(column.sequence).limit(SCANNED).subquery("rows")
        numbers += await connection.scalars(
            select(rows.c.sequence)
            .where(rows.c.tenant_id == row.tenant_id, rows.c.order_key == row.order_key)
            .order_by(rows.c.sequence)
            .limit(1)
        )
    if not numbers:
        return None
    first = select(OUTBOX).where(column.sequence == min(numbers))
    other = (await connection.execute(first)).first()
    if other is None:
        return None
    return Other(
        event_id=other.id,
        status=OutboxStatus(other.status),
        since=other.last_attempt_at,
        error=other.error_message,
    )
