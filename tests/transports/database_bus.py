"""What the tests of the database bus share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, func, select, update

from semel.envelope import MessageEnvelope
from semel.sqlalchemy.bus_tables import BusGroup, BusMessage, BusPartition
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts.harness import message
from semel.testing.reader import Reader
from semel.transports.database import DatabaseMessageBus
from tests.services import mark


def backends(*names: str) -> list[Any]:
    """Parameters of a fixture that stands for the `database` fixture, with the same marks."""
    return [pytest.param(name, id=name, marks=getattr(pytest.mark, mark(name))) for name in names]


def keyed(topic: str, count: int, key: str = "k") -> list[MessageEnvelope]:
    return [message(topic, key=key, payload=n) for n in range(count)]


async def read(
    bus: DatabaseMessageBus, topic: str, group: str = "group", prefetch: int = 100
) -> Reader:
    subscription = await bus.subscribe(topic, group=group, prefetch=prefetch)
    return Reader(subscription, patience_seconds=20)


async def count(storage: SqlAlchemyStorage, topic: str) -> int:
    """How many messages of *topic* are in the table."""
    async with storage.engine.connect() as connection:
        return (
            await connection.scalar(
                select(func.count())
                .select_from(BusMessage)
                .join(BusPartition, BusPartition.id == BusMessage.partition_id)
                .where(BusPartition.topic == topic)
            )
            or 0
        )


async def expire(storage: SqlAlchemyStorage, group: str, days: int) -> None:
    """Let *group* have been seen that many days ago for the last time."""
    async with storage.engine.begin() as connection:
        past = storage._database.later(-86400.0 * days)
        await connection.execute(
            update(BusGroup).where(BusGroup.group_name == group).values(expires_at=past)
        )


@contextmanager
def statements(storage: SqlAlchemyStorage) -> Iterator[Counter[str]]:
    """Count the statements by their first two words and table."""
    seen: Counter[str] = Counter()

    def listen(_connection, _cursor, sql: str, *_: object) -> None:
        verb = sql.split(maxsplit=1)[0].upper().lstrip("(")
        table = re.search(r"bus_\w+", sql)
        if table is not None:
            seen[f"{verb} {table[0]}"] += 1

    engine = storage.engine.sync_engine
    event.listen(engine, "before_cursor_execute", listen)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", listen)
