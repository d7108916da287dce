"""txoutbox: asyncpg, a function as publisher; larger batches than its default are its best."""

from __future__ import annotations

import asyncio

import asyncpg
from driving import BUSINESS, DSN, INSERT, KEYS, PAYLOAD, TEXT, Counter, main, writes
from txoutbox import Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

CONFIG = RelayConfig(batch_size=500, concurrency=100, poll_max=0.05)


async def _storage(**options: bool) -> PostgresStorage:
    storage = await PostgresStorage.connect(DSN, **options)
    await storage.create_schema()
    return storage


async def _drain(storage: PostgresStorage, wanted: int, seconds: float | None = None) -> float:
    counter = Counter(wanted)

    async def publish(message: object) -> None:
        if getattr(message, "key", None) != "other":
            counter.add()

    relay = Relay(storage, publish, config=CONFIG)
    task = asyncio.create_task(relay.run())
    await counter.wait(seconds)
    relay.stop()
    if counter.is_full:
        await task
    else:
        task.cancel()
    return counter.rate()


async def _fill(storage: PostgresStorage, count: int, key: str) -> None:
    async with storage.pool.acquire() as connection, connection.transaction():
        for number in range(count):
            await storage.insert(connection, "orders", PAYLOAD, key=key.format(number % KEYS))


async def relay(events: int) -> dict[str, float]:
    figures = {}
    for name, strict in (("", True), (", without order", False)):
        storage = await _storage(strict_ordering=strict, delete_on_ack=False)
        await _fill(storage, events, "k{}")
        figures[name] = await _drain(storage, events)
        await storage.close()
    return figures


async def hot(hot: int, others: int, seconds: float) -> dict[str, float]:
    storage = await _storage()
    await _fill(storage, hot, "hot")
    for _ in range(others):
        await _fill(storage, 1, "other")
    return {"": await _drain(storage, hot, seconds)}


async def write(transactions: int, connections: int) -> dict[str, float]:
    storage = await _storage()
    pool = await asyncpg.create_pool(DSN, min_size=connections, max_size=connections)
    await pool.execute(BUSINESS)

    async def transaction(events: int, number: int) -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, TEXT[:200])
            for _ in range(events):
                await storage.insert(connection, "orders", PAYLOAD, key=f"k{number}")

    return await writes(transaction, transactions, connections)


main(relay=relay, hot=hot, write=write)
