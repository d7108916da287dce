"""sagaz: its worker with a large batch and no pause between polls."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from driving import BUSINESS, DSN, INSERT, PAYLOAD, TEXT, Counter, main, writes
from sagaz.core.outbox import OutboxConfig, OutboxEvent, OutboxWorker
from sagaz.core.storage.backends.postgresql.outbox import PostgreSQLOutboxStorage


class Sink:
    """A broker that counts."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def health_check(self) -> bool:
        return True

    async def publish(self, *_: Any, **__: Any) -> None:
        self._counter.add()

    async def publish_event(self, *_: Any, **__: Any) -> None:
        self._counter.add()


def _event(number: int) -> OutboxEvent:
    return OutboxEvent(
        saga_id=f"s{number}", aggregate_id=f"k{number}", event_type="OrderPlaced", payload=PAYLOAD
    )


async def _storage() -> PostgreSQLOutboxStorage:
    storage = PostgreSQLOutboxStorage(connection_string=DSN, pool_min_size=5, pool_max_size=20)
    await storage.initialize()
    return storage


async def relay(events: int) -> dict[str, float]:
    storage = await _storage()
    connection = await asyncpg.connect(DSN)
    async with connection.transaction():
        for number in range(events):
            await storage.insert(_event(number), connection=connection)
    counter = Counter(events)
    worker = OutboxWorker(
        storage, Sink(counter), OutboxConfig(batch_size=500, poll_interval_seconds=0.01)
    )
    task = asyncio.create_task(worker.start())
    await counter.wait()
    await worker.stop()
    await task
    return {"": counter.rate()}


async def write(transactions: int, connections: int) -> dict[str, float]:
    storage = await _storage()
    pool = await asyncpg.create_pool(DSN, min_size=connections, max_size=connections)
    await pool.execute(BUSINESS)

    async def transaction(events: int, number: int) -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, TEXT[:200])
            for _ in range(events):
                await storage.insert(_event(number), connection=connection)

    return await writes(transaction, transactions, connections)


main(relay=relay, write=write)
