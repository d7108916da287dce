"""Groups of the database bus: who reads which log, and how far.

Everything that a member does is one statement in a transaction of its own, on one connection
that is kept: it never waits for the connections of handlers, and no transaction stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Table,
    and_,
    bindparam,
    case,
    delete,
    insert,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from semel.sqlalchemy.bus_tables import BusGroup, BusMember, BusMessage, BusPartition
from semel.sqlalchemy.connection import KeptConnection
from semel.sqlalchemy.dialects import Database, database_of
from semel.sqlalchemy.leases import relay_engine

_partition = cast("Table", BusPartition.__table__)
_message = cast("Table", BusMessage.__table__)
_group = cast("Table", BusGroup.__table__)
_member = cast("Table", BusMember.__table__)


class Row(NamedTuple):
    """A message as it was read."""

    partition_id: int
    position: int
    message_key: str | None
    headers: str
    body: bytes


class Member(NamedTuple):
    """Who reads."""

    id: str
    topic: str
    group: str
    lease_seconds: float


class Seat(NamedTuple):
    """One log as a group sees it."""

    partition_id: int
    owner: str | None
    epoch: int
    position: int
    delivered: int
    first: int
    next: int
    is_free: bool  # or 0 and 1, as some databases say


#: How far the owner of a log is: partition id, epoch, position, delivered.
Mark = tuple[int, int, int, int]
_MARK = ("partition_id", "epoch", "position", "delivered")


class SqlAlchemyGroups:
    """Members, their leases and their positions."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = relay_engine(engine)
        self._database = database_of(engine.dialect)
        self._connection = KeptConnection(engine)

    async def join(self, member: Member, *, from_beginning: bool) -> None:
        """Make the group known: from now on nothing is removed that it has not consumed."""
        async with self._engine.begin() as connection:
            await connection.run_sync(self._join, member, from_beginning)

    def _join(self, connection: Connection, member: Member, from_beginning: bool) -> None:
        logs = connection.execute(
            select(_partition)
            .where(_partition.c.topic == member.topic)
            .order_by(_partition.c.id)
            .with_for_update()
        ).all()
        known = set(
            connection.scalars(
                select(_group.c.partition_id).where(
                    _group.c.group_name == member.group,
                    _group.c.partition_id.in_([log.id for log in logs]),
                )
            )
        )
        rows = []
        for log in logs:
            start = log.first_position if from_beginning else log.next_position
            row = {"group_name": member.group, "partition_id": log.id}
            rows.append({**row, "position": start, "delivered": start, "epoch": 0})
        missing = [row for row in rows if row["partition_id"] not in known]
        if missing:
            self._database.insert_absent(connection, _group, missing, stamped=["expires_at"])

    async def heartbeat(self, member: Member) -> tuple[Sequence[Seat], Sequence[str]]:
        """Renew the member and all its leases; return the group's logs and living members."""
        until = self._database.later(member.lease_seconds)
        async with self._connection.use() as connection:
            seen = await connection.execute(
                update(_member).where(_member.c.id == member.id).values(expires_at=until)
            )
            if seen.rowcount == 0:
                await connection.execute(
                    insert(_member).values(
                        id=member.id,
                        topic=member.topic,
                        group_name=member.group,
                        started_at=self._database.now(),
                        expires_at=until,
                    )
                )
            await connection.execute(
                update(_group)
                .where(_group.c.group_name == member.group, _group.c.owner == member.id)
                .values(expires_at=until)
            )
            members = await connection.scalars(
                select(_member.c.id).where(
                    _member.c.topic == member.topic,
                    _member.c.group_name == member.group,
                    _member.c.expires_at > self._database.now(),
                )
            )
            living = sorted({member.id, *members})
        return await self.seats(member), living

    async def seats(self, member: Member) -> Sequence[Seat]:
        """Return the logs of the member's topic as its group sees them."""
        free = or_(_group.c.owner.is_(None), _group.c.expires_at <= self._database.now())
        statement = (
            select(
                _group.c.partition_id,
                _group.c.owner,
                _group.c.epoch,
                _group.c.position,
                _group.c.delivered,
                _partition.c.first_position,
                _partition.c.next_position,
                free,
            )
            .join_from(_group, _partition, _partition.c.id == _group.c.partition_id)
            .where(_group.c.group_name == member.group, _partition.c.topic == member.topic)
        )
        async with self._connection.use() as connection:
            rows = (await connection.execute(statement)).all()
        return [Seat(*row) for row in rows]

    async def claim(self, member: Member, partitions: Collection[int]) -> Sequence[Seat]:
        """Take those logs that are free or whose lease has expired; each raises its epoch."""
        async with self._connection.use() as connection:
            await connection.execute(
                update(_group)
                .where(
                    _group.c.group_name == member.group,
                    _group.c.partition_id.in_(sorted(partitions)),
                    or_(_group.c.owner.is_(None), _group.c.expires_at <= self._database.now()),
                )
                .values(
                    owner=member.id,
                    epoch=_group.c.epoch + 1,
                    expires_at=self._database.later(member.lease_seconds),
                )
            )
        return await self.seats(member)

    async def bounds(self, topic: str) -> Sequence[tuple[int, int, int]]:
        """Return each log of *topic*: its id, first position kept, position behind its last."""
        statement = (
            select(_partition.c.id, _partition.c.first_position, _partition.c.next_position)
            .where(_partition.c.topic == topic)
            .order_by(_partition.c.partition_no)
        )
        async with self._connection.use() as connection:
            return [(row[0], row[1], row[2]) for row in await connection.execute(statement)]

    async def fetch(self, reads: Sequence[tuple[int, int, int]]) -> Sequence[Row]:
        """Read logs, each from a position on and up to a limit, with one statement."""
        parameters: dict[str, Any] = {}
        for number, (identity, start, limit) in enumerate(reads):
            parameters |= {
                f"id_{number}": identity,
                f"start_{number}": start,
                f"limit_{number}": limit,
            }
        async with self._connection.use() as connection:
            rows = await connection.execute(_fetch(self._database, len(reads)), parameters)
            return sorted((Row(*row) for row in rows), key=_place)

    async def commit(self, member: Member, marks: Sequence[Mark], *, release: bool = False) -> bool:
        """Store how far the owner is; False if a log is not ours any more, which is left alone.

        With *release* the logs are free afterwards, for others to claim at once.
        """
        if not marks:
            return True
        parameters: dict[str, Any] = {"of_group": member.group, "of_owner": member.id}
        for number, mark in enumerate(marks):
            for name, value in zip(_MARK, mark, strict=True):
                parameters[f"{name}_{number}"] = value
        async with self._connection.use() as connection:
            statement = _commit(self._database, len(marks), release=release)
            result = await connection.execute(statement, parameters)
        return bool(result.rowcount == len(marks))

    async def leave(self, member: Member) -> None:
        """Strike the member off."""
        async with self._connection.use() as connection:
            await connection.execute(delete(_member).where(_member.c.id == member.id))


def _place(row: Row) -> tuple[int, int]:
    return row.partition_id, row.position


# Made once per number of logs: SQLAlchemy then spends little time on them.
@lru_cache(maxsize=256)
def _fetch(database: Database, count: int) -> Any:
    parts = []
    for number in range(count):
        part = (
            select(
                _message.c.partition_id,
                _message.c.position,
                _message.c.message_key,
                database.as_text(_message.c.headers).label("headers"),
                _message.c.body,
            )
            .where(
                _message.c.partition_id == bindparam(f"id_{number}", type_=BigInteger),
                _message.c.position >= bindparam(f"start_{number}", type_=BigInteger),
            )
            .order_by(_message.c.position)
            .limit(bindparam(f"limit_{number}", type_=Integer))
        )
        parts.append(database.part_of_union(part, name=f"log_{number}"))
    return union_all(*parts)


@lru_cache(maxsize=256)
def _commit(database: Database, count: int, *, release: bool) -> Any:
    def numbered(name: str) -> list[Any]:
        return [bindparam(f"{name}_{n}", type_=BigInteger) for n in range(count)]

    of = [_group.c.partition_id == identity for identity in numbered("partition_id")]
    values: dict[str, Any] = {
        name: case(*zip(of, numbered(name), strict=True)) for name in ("position", "delivered")
    }
    if release:
        values |= {"owner": null(), "expires_at": database.now()}
    return (
        update(_group)
        .where(
            _group.c.group_name == bindparam("of_group", type_=_group.c.group_name.type),
            _group.c.owner == bindparam("of_owner", type_=_group.c.owner.type),
            or_(
                *(
                    and_(mine, _group.c.epoch == epoch)
                    for mine, epoch in zip(of, numbered("epoch"), strict=True)
                )
            ),
        )
        .values(values)
    )
