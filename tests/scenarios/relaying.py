"""What the tests of the relay share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select, text

from semel.envelope import MessageEnvelope
from semel.errors import PublishError
from semel.observer import NullObserver
from semel.projector import OutboxProjector
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.layout import PARKED
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from semel.transports.memory import InMemoryMessageBus

each_database = pytest.mark.parametrize(
    "database", ["sqlite", "postgres", "mariadb"], indirect=True
)
sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

SETTINGS: dict[str, Any] = {
    "batch_size": 20,
    "lease_seconds": 1.0,
    "sweep_seconds": 0.3,
    "sleep_busy": 0.02,
    "sleep_idle": 0.2,
    "retry_base_seconds": 0.02,
    "retry_max_seconds": 0.05,
    "breaker_max_seconds": 0.1,
    "publish_timeout_seconds": 5.0,
}


def config(**changes: Any) -> OutboxProjectorConfig:
    return OutboxProjectorConfig(**(SETTINGS | changes))


class Counts(NullObserver):
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.totals[name] += int(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[f"{name} {' '.join(labels.values())}"] = value


class ScriptedBus(InMemoryMessageBus):
    """Hands every batch to *script* first, which may raise or wait; remembers each try."""

    def __init__(
        self, script: Callable[[Sequence[MessageEnvelope]], Awaitable[None]] | None = None
    ) -> None:
        super().__init__()
        self.script = script
        self.tries: list[list[str]] = []
        self.pings = 0

    async def ping(self) -> None:
        self.pings += 1
        await super().ping()

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        self.tries.append([message.event_id for message in messages])
        if self.script is not None:
            await self.script(messages)
        return await super().publish_many(messages)

    def tried(self, event_id: str) -> int:
        return sum(batch.count(event_id) for batch in self.tries)


def projector(
    storage: SqlAlchemyStorage, bus: InMemoryMessageBus, **changes: Any
) -> OutboxProjector:
    """A projector of all tenants with small times."""
    options = {
        name: changes.pop(name)
        for name in ("tenant_id", "observer", "store", "clock")
        if name in changes
    }
    return OutboxProjector(
        message_bus=bus,
        config=config(**changes),
        **{"store": storage.relay, "tenant_id": None} | options,
    )


@asynccontextmanager
async def running(*projectors: OutboxProjector) -> AsyncIterator[OutboxProjector]:
    """Run them inside the block, stop them after it; an error of theirs fails the test."""
    tasks = [asyncio.create_task(each.run_forever()) for each in projectors]
    try:
        yield projectors[0]
    finally:
        for each in projectors:
            await each.stop()
        await asyncio.gather(*tasks)


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 20.0
) -> None:
    """Return once *condition* holds."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.02)


async def add(
    storage: SqlAlchemyStorage,
    event_id: str,
    *,
    key: str | None = None,
    topic: str = "orders",
    tenant_id: str = "default",
    available_at: datetime | None = None,
) -> None:
    """Commit one event in a transaction of its own."""
    async with storage.unit_of_work(tenant_id=tenant_id) as uow:
        await uow.outbox.add(
            topic, {"id": event_id}, key=key, event_id=event_id, available_at=available_at
        )
        await uow.commit()


async def add_many(
    storage: SqlAlchemyStorage, events: Iterable[tuple[str, str | None]], *, topic: str = "orders"
) -> None:
    """Commit events, given as id and key, in one transaction."""
    async with storage.unit_of_work() as uow:
        for event_id, key in events:
            await uow.outbox.add(topic, {"id": event_id}, key=key, event_id=event_id)
        await uow.commit()


def keyed(count: int, keys: int, *, prefix: str = "e") -> list[tuple[str, str]]:
    """Ids and keys: the number after the dash is the order within the key."""
    return [(f"{prefix}{n % keys}-{n // keys:04d}", f"{prefix}{n % keys}") for n in range(count)]


async def rows(storage: SqlAlchemyStorage) -> dict[str, OutboxRecord]:
    async with storage.session_factory() as session:
        found = await session.scalars(select(OutboxRecord).order_by(OutboxRecord.sequence))
        return {row.id: row for row in found}


async def row(storage: SqlAlchemyStorage, event_id: str) -> OutboxRecord:
    return (await rows(storage))[event_id]


async def statuses(storage: SqlAlchemyStorage) -> Counter[str]:
    status = OutboxRecord.status
    async with storage.session_factory() as session:
        found = await session.execute(select(status, func.count()).group_by(status))
        return Counter({name: number for name, number in found.all()})  # noqa: C416


async def all_sent(storage: SqlAlchemyStorage) -> bool:
    return set(await statuses(storage)) <= {"SENT"}


async def execute(storage: SqlAlchemyStorage, sql: str, **parameters: Any) -> int:
    """Run plain SQL, as an operator would."""
    async with storage.engine.begin() as connection:
        return int((await connection.execute(text(sql), parameters)).rowcount)


def first_occurrences(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def assert_ordered(ids: Iterable[str]) -> None:
    """First occurrences are in order per key; ids are as `keyed` makes them."""
    by_key: dict[str, list[str]] = {}
    for event_id in first_occurrences(ids):
        by_key.setdefault(event_id.partition("-")[0], []).append(event_id)
    for order in by_key.values():
        assert sorted(order) == order


def assert_no_duplicates(ids: Sequence[str]) -> None:
    assert [] == [event_id for event_id, number in Counter(ids).items() if number > 1]


async def in_lane(storage: SqlAlchemyStorage, base: int) -> int:
    """How many rows are in the lanes from *base* on."""
    async with storage.session_factory() as session:
        query = select(func.count()).where(OutboxRecord.lane.between(base, base + 63))
        return await session.scalar(query) or 0


async def parked(storage: SqlAlchemyStorage, number: int) -> bool:
    return await in_lane(storage, PARKED) == number


async def untouched(storage: SqlAlchemyStorage) -> None:
    for item in (await rows(storage)).values():
        assert 0 == item.retry_count
        assert item.status != "DEAD"
