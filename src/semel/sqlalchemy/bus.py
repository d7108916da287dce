"""The database as a broker: logs of messages, and groups that read them under leases.

A publisher locks the rows of the logs that it adds to until its commit, so that positions become
visible in their order and without gaps: whoever has read up to a position has missed nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from sqlalchemy import (
    BigInteger,
    Connection,
    Table,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.errors import StorageError, describe
from semel.failpoints import failpoint
from semel.sqlalchemy.bus_groups import SqlAlchemyGroups
from semel.sqlalchemy.bus_tables import BusGroup, BusMember, BusMessage, BusPartition
from semel.sqlalchemy.types import UtcDateTime
from semel.sqlalchemy.wakeup import Signal

CHANNEL = "semel_bus"
Cause = Literal["refused", "busy", "schema", "commit", "denied"]

_partition = cast("Table", BusPartition.__table__)
_message = cast("Table", BusMessage.__table__)
_group = cast("Table", BusGroup.__table__)
_member = cast("Table", BusMember.__table__)


class CommitLostError(StorageError):
    """The database did not say whether it committed."""


class UnknownPartitionError(StorageError):
    """A log is gone that was there before."""


class NewMessage(NamedTuple):
    """A message to be added to a log."""

    partition_id: int
    message_key: str | None
    headers: str
    body: bytes


class SqlAlchemyBusStore(SqlAlchemyGroups):
    """Adds messages and removes old ones; groups come from the base class."""

    def __init__(self, engine: AsyncEngine, *, notify: bool = True) -> None:
        super().__init__(engine)
        self.signal = Signal(engine, channel=CHANNEL, notify=notify)
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")

    def cause(self, error: BaseException) -> Cause:
        """Say what *error* means for a publisher."""
        if isinstance(error, CommitLostError):
            return "commit"
        if isinstance(error, UnknownPartitionError):
            return "schema"
        if isinstance(error, DataError):
            return "refused"
        if isinstance(error, DBAPIError) and self._database.is_missing_table(error):
            return "schema"
        return "busy" if self._database.is_transient(error) else "denied"

    async def ping(self) -> None:
        """Raise if the database does not answer or has no tables of the bus."""
        async with self._reader.connect() as connection:
            await connection.execute(select(_partition.c.id).limit(1))

    async def partitions(self, topic: str, *, count: int) -> Sequence[int]:
        """Return the logs of *topic* in order; a new topic gets *count* of them."""
        query = (
            select(_partition.c.id)
            .where(_partition.c.topic == topic)
            .order_by(_partition.c.partition_no)
        )
        async with self._reader.connect() as connection:
            found = list(await connection.scalars(query))
        if found:
            return found
        try:
            async with self._engine.begin() as connection:
                await connection.execute(
                    insert(_partition),
                    [{"topic": topic, "partition_no": number} for number in range(count)],
                )
            failpoint("bus.after_topic")
        except IntegrityError:
            pass  # somebody else was faster, perhaps with another number of logs
        async with self._reader.connect() as connection:
            return list(await connection.scalars(query))

    async def append(self, messages: Sequence[NewMessage]) -> None:
        """Add messages to the ends of their logs, all or none, in the given order."""
        async with self._engine.connect() as connection:
            try:
                await self._commit(connection, messages)
            except Exception:
                raise
            except BaseException:
                # Cancelled: the answer may still be under way, so the connection is not reused.
                await connection.invalidate()
                raise
        failpoint("bus.after_append")
        self.signal.send()

    async def _commit(self, connection: AsyncConnection, messages: Sequence[NewMessage]) -> None:
        transaction = await connection.begin()
        try:
            await connection.run_sync(self._append, messages)
        except Exception:
            await transaction.rollback()
            raise
        failpoint("bus.before_append")
        try:
            await transaction.commit()
        except Exception as error:
            raise CommitLostError(f"no answer to COMMIT ({describe(error)})") from error

    def _append(self, connection: Connection, messages: Sequence[NewMessage]) -> None:
        counts = Counter(message.partition_id for message in messages)
        # In one order for all publishers, and until the commit.
        locked = connection.execute(
            select(
                _partition.c.id,
                _partition.c.next_position,
                type_coerce(self._database.now(), UtcDateTime),
                *self._database.lock_guards(),
            )
            .where(_partition.c.id.in_(sorted(counts)))
            .order_by(_partition.c.id)
            .with_for_update()
        ).all()
        if len(locked) != len(counts):
            raise UnknownPartitionError("a topic was removed from bus_partition while in use")
        positions = {row.id: row.next_position for row in locked}
        created = locked[0][2]
        rows = []
        for identity, key, headers, body in messages:
            position = positions[identity]
            positions[identity] = position + 1
            rows.append(
                {
                    "partition_id": identity,
                    "position": position,
                    "message_key": key,
                    "headers": headers,
                    "body": body,
                    "created_at": created,
                }
            )
        self._database.insert_rows(connection, _message, rows)
        parameters: dict[str, Any] = {}
        for number, (identity, position) in enumerate(positions.items()):
            parameters |= {f"id_{number}": identity, f"next_{number}": position}
        connection.execute(_advance(len(positions)), parameters)

    async def cleanup(
        self,
        *,
        retention: timedelta,
        group_expiry: timedelta,
        batch_size: int,
        topics: Collection[str] | None = None,
    ) -> int:
        """Delete messages, of *topics* if given, older than *retention* and consumed by all groups.

        A group is waited for until *group_expiry* after it was last seen.
        """
        age, absence = retention.total_seconds(), group_expiry.total_seconds()
        oldest = (
            select(_message.c.created_at)
            .where(
                _message.c.partition_id == _partition.c.id,
                _message.c.position >= _partition.c.first_position,
            )
            .order_by(_message.c.position)
            .limit(1)
            .scalar_subquery()
        )
        async with self._reader.connect() as connection:
            old = select(_partition.c.id).where(oldest <= self._database.later(-age))
            if topics is not None:
                old = old.where(_partition.c.topic.in_(sorted(topics)))
            stale = list(await connection.scalars(old))
        removed = 0
        for identity in stale:
            count = batch_size
            while count == batch_size:
                async with self._engine.begin() as connection:
                    count = await connection.run_sync(
                        self._remove, identity, age, absence, batch_size
                    )
                failpoint("cleanup.after_messages")
                removed += count
        async with self._engine.begin() as connection:
            await connection.execute(
                delete(_member).where(_member.c.expires_at < self._database.later(-600.0))
            )
        return removed

    def _remove(
        self, connection: Connection, identity: int, age: float, absence: float, limit: int
    ) -> int:
        # Locked as by a group that joins: either we see it, or it starts behind what we delete.
        end = connection.scalar(
            select(_partition.c.next_position).where(_partition.c.id == identity).with_for_update()
        )
        consumed = connection.scalar(
            select(func.min(_group.c.position)).where(
                _group.c.partition_id == identity,
                _group.c.expires_at > self._database.later(-absence),
            )
        )
        some = (
            select(_message.c.position, _message.c.created_at)
            .where(
                _message.c.partition_id == identity,
                _message.c.position < (end if consumed is None else consumed),
            )
            .order_by(_message.c.position)
            .limit(limit)
            .subquery()
        )
        last = connection.scalar(
            select(func.max(some.c.position)).where(some.c.created_at <= self._database.later(-age))
        )
        if last is None:
            return 0
        gone = connection.execute(
            delete(_message).where(_message.c.partition_id == identity, _message.c.position <= last)
        )
        connection.execute(
            update(_partition).where(_partition.c.id == identity).values(first_position=last + 1)
        )
        return int(gone.rowcount)

    async def close(self) -> None:
        """Close the connections that are kept."""
        await self.signal.close()
        await self._connection.close()


# Made once per number of logs: SQLAlchemy then spends little time on it.
@lru_cache(maxsize=256)
def _advance(count: int) -> Any:
    of = [_partition.c.id == bindparam(f"id_{n}", type_=BigInteger) for n in range(count)]
    following = [bindparam(f"next_{n}", type_=BigInteger) for n in range(count)]
    return (
        update(_partition)
        .where(or_(*of))
        .values(next_position=case(*zip(of, following, strict=True)))
    )
