"""Bounded looks at the outbox: windows along the primary key, heads of lanes, times to numbers.

Nothing but the primary key and the lanes is indexed, on purpose: writers pay for every index.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, Select, Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.operations import OutboxFilter
from semel.sqlalchemy.layout import DEAD_BLOCKING, DEAD_RELEASED, PARTITIONS
from semel.sqlalchemy.tables import OutboxRecord, OutboxSlot
from semel.states import OutboxStatus

OUTBOX = cast("Table", OutboxRecord.__table__)
_slot = cast("Table", OutboxSlot.__table__)
#: Numbers and times of creation rise together, but for transactions at the same time.
_MARGIN = timedelta(minutes=5)
_COLUMNS = {"key": "order_key"}


class Lanes(NamedTuple):
    """A range of lanes, both ends included."""

    first: int
    last: int

    @property
    def condition(self) -> ColumnElement[bool]:
        """Return the condition that a row is in one of them."""
        return OUTBOX.c.lane.between(self.first, self.last)


UNSENT = Lanes(0, DEAD_BLOCKING - 1)
DEAD = Lanes(DEAD_BLOCKING, DEAD_RELEASED + PARTITIONS - 1)


class Span(NamedTuple):
    """A range of numbers, both ends included."""

    first: int
    last: int

    @property
    def condition(self) -> ColumnElement[bool]:
        """Return the condition that a row is inside."""
        return OUTBOX.c.sequence.between(self.first, self.last)


def lanes_of(where: OutboxFilter) -> Lanes | None:
    """Return the lanes that hold all rows of the status asked for, if an index has them."""
    if where.status is None or where.status is OutboxStatus.SENT:
        return None
    return DEAD if where.status is OutboxStatus.DEAD else UNSENT


def conditions(where: OutboxFilter, columns: Any = OUTBOX.c) -> list[ColumnElement[bool]]:
    """Return what *where* says, about *columns*."""
    found: list[ColumnElement[bool]] = []
    for name, value in where.criteria().items():
        if name == "since":
            found.append(columns.created_at >= value)
        elif name == "until":
            found.append(columns.created_at < value)
        elif name == "error":
            found.append(columns.error_message.icontains(value, autoescape=True))
        else:
            found.append(columns[_COLUMNS.get(name, name)] == value)
    return found


def columns_of(where: OutboxFilter) -> list[ColumnElement[Any]]:
    """Return the columns that the conditions are about."""
    names = {"since": "created_at", "until": "created_at", "error": "error_message", **_COLUMNS}
    return [OUTBOX.c[name] for name in {names.get(name, name) for name in where.criteria()}]


async def bounds(connection: AsyncConnection, where: OutboxFilter) -> Span:
    """Return the numbers between which all rows of the time asked for are; empty: last < first."""
    lowest, highest = await _ends(connection)
    if where.since is not None:
        lowest = await _position(connection, _shift(where.since, -_MARGIN), lowest, highest)
    last = highest
    if where.until is not None:
        last = await _position(connection, _shift(where.until, _MARGIN), lowest, highest)
    return Span(lowest, last)


async def _ends(connection: AsyncConnection) -> tuple[int, int]:
    # One statement, two look-ups: SQLite scans everything for both at once.
    lowest = select(func.min(OUTBOX.c.sequence)).scalar_subquery()
    highest = select(func.max(OUTBOX.c.sequence)).scalar_subquery()
    first, last = (await connection.execute(select(lowest, highest))).one()
    return (1, 0) if first is None else (first, last)


async def _position(connection: AsyncConnection, moment: datetime, low: int, high: int) -> int:
    """Find, by bisection, the lowest number from which on rows are as young as *moment*."""
    while low < high:
        middle = (low + high) // 2
        found = await connection.execute(
            select(OUTBOX.c.sequence, OUTBOX.c.created_at)
            .where(OUTBOX.c.sequence.between(middle, high))
            .order_by(OUTBOX.c.sequence)
            .limit(1)
        )
        row = found.one_or_none()
        if row is None or row.created_at >= moment:
            high = middle
        else:
            low = row.sequence + 1
    return low


def _shift(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment


async def next_span(
    connection: AsyncConnection, span: Span, lanes: Lanes | None, *, size: int
) -> Span | None:
    """Return the lowest *size* rows of *span*, from the first that is in *lanes* on."""
    number = OUTBOX.c.sequence
    first = span.first
    if lanes is not None:
        heads = _heads(lanes, lambda rows: rows.where(number >= span.first).order_by(number))
        head = await connection.scalar(select(func.min(heads.c.head)))
        first = span.last + 1 if head is None else max(head, span.first)
    if first > span.last:
        return None
    last = await connection.scalar(
        select(number)
        .where(number.between(first, span.last))
        .order_by(number)
        .offset(size - 1)
        .limit(1)
    )
    return Span(first, span.last if last is None else last)


async def last_span(
    connection: AsyncConnection, span: Span, lanes: Lanes | None, *, size: int
) -> Span | None:
    """Return the highest *size* rows of *span*, up to the last that is in *lanes*."""
    number = OUTBOX.c.sequence
    last = span.last
    if lanes is not None:
        heads = _heads(lanes, lambda rows: rows.where(number <= span.last).order_by(number.desc()))
        head = await connection.scalar(select(func.max(heads.c.head)))
        last = span.first - 1 if head is None else head
    if last < span.first:
        return None
    first = await connection.scalar(
        select(number)
        .where(number.between(span.first, last))
        .order_by(number.desc())
        .offset(size - 1)
        .limit(1)
    )
    return Span(span.first if first is None else first, last)


async def heads_of(connection: AsyncConnection, lanes: Lanes) -> list[int]:
    """Return the lowest number of each lane that is not empty."""
    heads = _heads(lanes, lambda rows: rows.order_by(OUTBOX.c.sequence))
    found = await connection.scalars(select(heads.c.head).where(heads.c.head.is_not(None)))
    return list(found)


def _heads(lanes: Lanes, choose: Callable[[Select[Any]], Select[Any]]) -> Any:
    """One look-up per lane. The table of slots serves as a list of numbers."""
    inner = choose(select(OUTBOX.c.sequence).where(OUTBOX.c.lane == _slot.c.slot)).limit(1)
    head = inner.correlate(_slot).scalar_subquery().label("head")
    return select(head).where(_slot.c.slot.between(lanes.first, lanes.last)).subquery("heads")
