"""Run a projector until a sink has what it wants, and bare loops of the same statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
from sqlalchemy import make_url

from benchmarks.databases import dsn
from semel import MessageEnvelope, OutboxProjector, OutboxProjectorConfig, SqlAlchemyStorage
from semel.errors import PublishError
from semel.protocols import MessageBus

BATCH = 1000
PATIENCE_SECONDS = 1800.0
#: What the projector reads of an event, too.
COLUMNS = (
    *("sequence", "partition_no", "status", "retry_count", "id", "topic", "event_type"),
    *("tenant_id", "order_key", "aggregate_id", "aggregate_type", "routing_key", "schema_id"),
    *("schema_version", "occurred_at", "event_metadata", "payload", "payload_bytes"),
    *("content_type", "created_at"),
)


class Sink:
    """A broker that accepts everything, and says when it has had *wanted* messages.

    Only those that *counts* accepts are counted. It answers after *delay* seconds.
    """

    def __init__(
        self,
        wanted: int,
        *,
        counts: Callable[[MessageEnvelope], bool] | None = None,
        delay: float = 0.0,
    ) -> None:
        self.count = 0
        self.full = asyncio.Event()
        self._wanted = wanted
        self._counts = counts
        self._delay = delay

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def publish(self, message: MessageEnvelope) -> None:
        await self.publish_many([message])

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        if self._delay:
            await asyncio.sleep(self._delay)
        if self._counts is None:
            self.count += len(messages)
        else:
            self.count += sum(map(self._counts, messages))
        if self.count >= self._wanted:
            self.full.set()
        return [None] * len(messages)


class CountingBus:
    """A real bus, with an eye on how many of its messages were confirmed."""

    def __init__(self, bus: MessageBus, wanted: int) -> None:
        self._bus = bus
        self._wanted = wanted
        self.count = 0
        self.full = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        results = await self._bus.publish_many(messages)
        self.count += sum(1 for result in results if result is None)
        if self.count >= self._wanted:
            self.full.set()
        return results


class Watched:
    """A relay store, with a note of when rows were first asked for."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.began = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fetch(self, *reads: Any, **options: Any) -> Any:
        self.began = self.began or time.perf_counter()
        return await self._store.fetch(*reads, **options)


async def relay(
    storage: SqlAlchemyStorage, bus: Any, events: int, *, batch: int = BATCH, **settings: Any
) -> float:
    """Events per second, from the first fetch until *bus* is full and all is acknowledged."""
    store = Watched(storage.relay)
    projector = OutboxProjector(
        message_bus=bus,
        tenant_id=None,
        store=store,
        config=OutboxProjectorConfig(batch_size=batch, **settings),
    )
    task = asyncio.create_task(projector.run_forever())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await bus.full.wait()
    finally:
        await projector.stop()
        await task
    return events / (time.perf_counter() - store.began)


async def bare(url: str, events: int, *, keep: bool = True) -> float:
    """Fetch and acknowledge with the raw driver of this database, and do nothing else."""
    loops = {"postgresql": _asyncpg, "mysql": _asyncmy, "sqlite": _aiosqlite}
    done, seconds = await loops[make_url(url).get_backend_name()](url, events, keep)
    return done / seconds


def _statements(parameter: str) -> tuple[str, str, str]:
    fetch = (
        f"SELECT {', '.join(COLUMNS)} FROM outbox "
        f"WHERE lane IS NOT NULL AND sequence > {parameter} ORDER BY sequence LIMIT {BATCH}"
    )
    return fetch, "UPDATE outbox SET status = 'SENT', lane = NULL, sent_at = ", "DELETE FROM outbox"


async def _asyncpg(url: str, events: int, keep: bool) -> tuple[int, float]:
    connection = await asyncpg.connect(dsn(url))
    fetch, sent, gone = _statements("$1")
    acknowledge = f"{sent}now()" if keep else gone
    floor, done, began = 0, 0, time.perf_counter()
    while done < events:
        rows = await connection.fetch(fetch, floor)
        numbers = [row["sequence"] for row in rows]
        await connection.execute(f"{acknowledge} WHERE sequence = ANY($1::bigint[])", numbers)
        floor, done = numbers[-1], done + len(numbers)
    seconds = time.perf_counter() - began
    await connection.close()
    return done, seconds


async def _asyncmy(url: str, events: int, keep: bool) -> tuple[int, float]:
    import asyncmy

    address = make_url(url)
    connection = await asyncmy.connect(
        host=address.host,
        port=address.port,
        user=address.username,
        password=address.password,
        db=address.database,
        autocommit=True,
    )
    fetch, sent, gone = _statements("%s")
    acknowledge = f"{sent}now(6)" if keep else gone
    floor, done, began = 0, 0, time.perf_counter()
    async with connection.cursor() as cursor:
        while done < events:
            await cursor.execute(fetch, (floor,))
            numbers = [row[0] for row in await cursor.fetchall()]
            listed = ", ".join(map(str, numbers))
            await cursor.execute(f"{acknowledge} WHERE sequence IN ({listed})")
            floor, done = numbers[-1], done + len(numbers)
    seconds = time.perf_counter() - began
    await connection.ensure_closed()
    return done, seconds


async def _aiosqlite(url: str, events: int, keep: bool) -> tuple[int, float]:
    import aiosqlite

    fetch, sent, gone = _statements("?")
    acknowledge = f"{sent}strftime('%Y-%m-%d %H:%M:%f000', 'now')" if keep else gone
    async with aiosqlite.connect(make_url(url).database, isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        floor, done, began = 0, 0, time.perf_counter()
        while done < events:
            numbers = [row[0] for row in await connection.execute_fetchall(fetch, (floor,))]
            listed = ", ".join(map(str, numbers))
            await connection.execute(f"{acknowledge} WHERE sequence IN ({listed})")
            floor, done = numbers[-1], done + len(numbers)
        return done, time.perf_counter() - began
