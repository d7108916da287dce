"""The outbox at a glance: how it moves, and what DEAD rows have in common."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from semel.operations import Count, DeadGroup, Pulse
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import DEAD, OUTBOX
from semel.sqlalchemy.outbox_search import SCANNED

_NEWEST = 5000
_RECENT_SECONDS = 60.0


class OutboxOverview(OperatorSide):
    """Figures for people who watch."""

    async def pulse(self, *, after: int | None = None, tenant_id: str | None = None) -> Pulse:
        """How many rows came after number *after*, and how long the newest took to be sent."""
        column = OUTBOX.c
        newest = (
            select(column.sequence, column.created_at, column.sent_at, column.tenant_id)
            .order_by(column.sequence.desc())
            .limit(_NEWEST)
            .subquery("newest")
        )
        query = select(newest.c.sequence, newest.c.created_at, newest.c.sent_at)
        if tenant_id is not None:
            query = query.where(newest.c.tenant_id == tenant_id)
        async with self._reader.connect() as connection:
            highest = await connection.scalar(select(func.max(column.sequence)))
            rows = (await connection.execute(query)).all()
        # A clean-up may have emptied the table, or the table may be new.
        position = max(highest or 0, after or 0)
        written = sum(1 for row in rows if after is not None and row.sequence > after)
        if tenant_id is None and after is not None:
            written = position - after
        sent = [(row.sent_at, row.created_at) for row in rows if row.sent_at is not None]
        newest_at = max((at for at, _ in sent), default=None)
        latencies = sorted(
            max(0.0, (at - created_at).total_seconds())
            for at, created_at in sent
            if newest_at is not None and (newest_at - at).total_seconds() <= _RECENT_SECONDS
        )
        return Pulse(
            position=position,
            written=written,
            latency_p50=_quantile(latencies, 0.5),
            latency_p95=_quantile(latencies, 0.95),
        )

    async def dead_groups(
        self, *, tenant_id: str | None = None, limit: int = 500
    ) -> Sequence[DeadGroup]:
        """DEAD rows by topic, type and text of the error, the largest groups first."""
        column, limit = OUTBOX.c, max(1, min(limit, 1000))
        names = ("topic", "event_type", "error_message")
        some = (
            select(*column[(*names, "tenant_id", "sequence", "last_attempt_at")])
            .where(DEAD.condition)
            .limit(SCANNED)
            .subquery("some")
        )
        keys = [some.c[name] for name in names]
        query = (
            select(
                *keys,
                func.count().label("number"),
                func.max(some.c.last_attempt_at).label("last_at"),
                func.max(some.c.sequence).label("last"),
            )
            .group_by(*keys)
            .order_by(func.count().desc())
            .limit(limit)
        )
        if tenant_id is not None:
            query = query.where(some.c.tenant_id == tenant_id)
        async with self._reader.connect() as connection:
            seen = await connection.scalar(select(func.count()).select_from(some))
            found = (await connection.execute(query)).all()
            last = select(column.sequence, column.id)
            last = last.where(column.sequence.in_([row.last for row in found]))
            ids = {row.sequence: row.id for row in await connection.execute(last)}
        # With more groups than asked for, or more rows than looked at, each may be larger.
        capped = (seen or 0) >= SCANNED or len(found) >= limit
        return [
            DeadGroup(
                topic=row.topic,
                event_type=row.event_type,
                error=row.error_message,
                count=Count(row.number, capped),
                last_at=row.last_at,
                last_id=ids.get(row.last),
            )
            for row in found
        ]


def _quantile(values: Sequence[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(len(values) * share))] if values else None
