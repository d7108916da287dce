"""The outbox in figures: exact while they are small, capped where the table is large."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    and_,
    case,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.sqlalchemy.layout import DEAD_BLOCKING, DEAD_RELEASED, PARKED, PARTITIONS, SCHEDULED
from semel.sqlalchemy.leases import read_control
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import OUTBOX, Lanes, heads_of
from semel.sqlalchemy.outbox_search import SCANNED
from semel.states import OutboxStats, OutboxStatus

_BANDS = {
    "hot": Lanes(0, PARKED - 1),
    "parked": Lanes(PARKED, SCHEDULED - 1),
    "scheduled": Lanes(SCHEDULED, DEAD_BLOCKING - 1),
    "blocking": Lanes(DEAD_BLOCKING, DEAD_RELEASED - 1),
    "released": Lanes(DEAD_RELEASED, DEAD_RELEASED + PARTITIONS - 1),
}
_DUE = Lanes(0, SCHEDULED - 1)
_UNSENT = (OutboxStatus.NEW, OutboxStatus.PUBLISHING, OutboxStatus.FAILED)


class OutboxFigures(OperatorSide):
    """Counts by status, and ages."""

    async def stats(self, *, tenant_id: str | None = None) -> OutboxStats:
        """Counts by status and the age of the oldest unsent row that is due."""
        async with self._reader.connect() as connection:
            counts = dict.fromkeys(OutboxStatus, 0)
            bands = dict.fromkeys((*_BANDS, "sent"), 0)
            seen = dict(bands)
            for band, status, ours, number in await connection.execute(_counting(tenant_id)):
                seen[band] += number
                if ours:
                    bands[band] += number
                    counts[OutboxStatus(status)] += number
            blocked = await connection.scalar(_blocked_keys(tenant_id))
            oldest = await self._oldest(connection, tenant_id)
            _, operations = await read_control(connection)
        return OutboxStats(
            counts=counts,
            oldest_unsent_seconds=oldest,
            blocked_keys=blocked or 0,
            scheduled=bands["scheduled"],
            parked=bands["parked"],
            capped=_capped({band for band, number in seen.items() if number >= SCANNED}),
            operations=operations,
        )

    async def _oldest(self, connection: AsyncConnection, tenant_id: str | None) -> float | None:
        """Return the greatest age of a row that could have been sent; waiting counts from then."""
        due = func.coalesce(OUTBOX.c.available_at, OUTBOX.c.created_at)
        if tenant_id is None:
            # The first row of a lane is its oldest.
            heads = OUTBOX.c.sequence.in_(await heads_of(connection, _DUE))
            query = select(self._database.seconds_until(func.min(due))).where(heads)
        else:
            rows = (
                select(due.label("due"), OUTBOX.c.tenant_id)
                .where(_DUE.condition)
                .limit(SCANNED)
                .subquery("rows")
            )
            query = select(self._database.seconds_until(func.min(rows.c.due))).where(
                rows.c.tenant_id == tenant_id
            )
        overdue = select(self._database.seconds_until(func.min(OUTBOX.c.available_at))).where(
            _BANDS["scheduled"].condition, _ours(tenant_id)
        )
        ages = []
        if (seconds := await connection.scalar(query)) is not None:
            ages.append(max(0.0, -float(seconds)))
        seconds = await connection.scalar(overdue)
        if seconds is not None and seconds <= 0:
            ages.append(-float(seconds))
        return max(ages, default=None)


def _ours(tenant_id: str | None) -> ColumnElement[bool]:
    return true() if tenant_id is None else OUTBOX.c.tenant_id == tenant_id


def _counting(tenant_id: str | None) -> Select[Any]:
    """One statement: each band, and the newest rows for those that were sent."""
    columns = (OUTBOX.c.status, OUTBOX.c.tenant_id, OUTBOX.c.lane)
    chosen = {
        band: select(*columns).where(lanes.condition).limit(SCANNED)
        for band, lanes in _BANDS.items()
    }
    chosen["sent"] = select(*columns).order_by(OUTBOX.c.sequence.desc()).limit(SCANNED)
    parts = []
    for band, rows in chosen.items():
        some = rows.subquery(band)
        ours: ColumnElement[bool] = some.c.lane.is_not(None)
        if band == "sent":
            ours = some.c.lane.is_(None)
        if tenant_id is not None:
            ours = and_(ours, some.c.tenant_id == tenant_id)
        parts.append(
            select(
                literal_column(f"'{band}'", String).label("band"),
                some.c.status,
                case((ours, literal_column("1")), else_=literal_column("0")).label("ours"),
                func.count().label("number"),
            ).group_by(some.c.status, "ours")
        )
    return select(union_all(*parts).subquery("figures"))


def _blocked_keys(tenant_id: str | None) -> Select[Any]:
    pair = (OUTBOX.c.tenant_id, OUTBOX.c.order_key)
    some = select(*pair).where(_BANDS["blocking"].condition).limit(SCANNED).subquery("some")
    keys = select(some).distinct()
    if tenant_id is not None:
        keys = keys.where(some.c.tenant_id == tenant_id)
    return select(func.count()).select_from(keys.subquery("keys"))


def _capped(bands: set[str]) -> frozenset[str]:
    """Return the names of the figures that the rows of these bands are part of."""
    names: set[str] = bands & {"parked", "scheduled"}
    if bands & {"hot", "parked", "scheduled"}:
        names |= {status.value for status in _UNSENT}
    if bands & {"blocking", "released"}:
        names.add(OutboxStatus.DEAD.value)
    if "blocking" in bands:
        names.add("blocked_keys")
    if "sent" in bands:
        names.add(OutboxStatus.SENT.value)
    return frozenset(names)
