"""The relay into a sink, and the write path, beside plain loops of the same statements."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from semel import MessageEnvelope, OutboxProjector, OutboxProjectorConfig, SqlAlchemyStorage
from semel.errors import PublishError
from semel.relay import Read

EVENTS = 50_000
BATCH = 1000
TRANSACTIONS = 400
CONNECTIONS = 8
RUNS = 3

business = Table(
    "benchbusiness",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("text", String(500)),
)


@dataclass
class Result:
    """One question: figures per side in events or transactions per second."""

    question: str
    target: float
    measured: str
    limit: str
    sides: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """What was measured, relative to the limit of the same run."""
        median = statistics.median
        return median(self.sides[self.measured]) / median(self.sides[self.limit])

    def as_dict(self) -> dict[str, Any]:
        """Return what the report keeps."""
        return {
            "question": self.question,
            "ratio": round(self.ratio, 3),
            "target": self.target,
            "sides": {name: [round(x) for x in figures] for name, figures in self.sides.items()},
        }


class Sink:
    """A broker that accepts everything, and says when it has *wanted* messages."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.full = asyncio.Event()
        self._wanted = wanted

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def publish(self, message: MessageEnvelope) -> None:
        self.count += 1

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        self.count += len(messages)
        if self.count >= self._wanted:
            self.full.set()
        return [None] * len(messages)

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def database(url: str) -> AsyncIterator[SqlAlchemyStorage]:
    """A fresh database with semel's tables."""
    name = f"bench_{uuid4().hex[:10]}"
    admin = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with admin.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
    fresh = make_url(url).set(database=name)
    try:
        async with SqlAlchemyStorage(fresh, pool_size=CONNECTIONS + 4) as storage:
            await storage.initialize()
            async with storage.engine.begin() as connection:
                await connection.run_sync(business.create)
            yield storage
    finally:
        async with admin.connect() as connection:
            await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        await admin.dispose()


async def _fill(storage: SqlAlchemyStorage) -> None:
    engine = storage.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text("TRUNCATE outbox RESTART IDENTITY"))
        await connection.execute(
            text(
                "INSERT INTO outbox (id, tenant_id, topic, event_type, order_key, occurred_at, "
                "payload, content_type, event_metadata, created_at, partition_no, lane) "
                "SELECT gen_random_uuid(), 'default', 'orders', 'OrderPlaced', 'k' || n % 5000, "
                "now(), CAST(json_build_object('text', repeat('x', 480)) AS json), "
                "'application/json', '{}', now(), n % 5000 % 64, n % 5000 % 64 "
                "FROM generate_series(1, :n) AS n"
            ),
            {"n": EVENTS},
        )
        await connection.execute(text("VACUUM ANALYZE outbox"))
        await connection.execute(text("CHECKPOINT"))


async def _plain_loop(storage: SqlAlchemyStorage) -> float:
    """Fetch and acknowledge, nothing else, with the relay's own statements."""
    await _fill(storage)
    floor, done, started = 0, 0, time.perf_counter()
    while True:
        entries = await storage.relay.fetch([Read(p, floor, BATCH // 64 + 1) for p in range(64)])
        if not entries:
            break
        await storage.relay.acknowledge([entry.sequence for entry in entries], keep=True)
        done += len(entries)
    return done / (time.perf_counter() - started)


async def _projector(storage: SqlAlchemyStorage) -> float:
    await _fill(storage)
    sink = Sink(EVENTS)
    projector = OutboxProjector(
        message_bus=sink,
        tenant_id=None,
        store=storage.relay,
        config=OutboxProjectorConfig(batch_size=BATCH),
    )
    started = time.perf_counter()
    task = asyncio.create_task(projector.run_forever())
    await sink.full.wait()
    seconds = time.perf_counter() - started
    await projector.stop()
    await task
    return EVENTS / seconds


async def relay_to_a_sink(url: str) -> Result:
    """Many keys, a backlog, no broker."""
    result = Result(
        f"relay into a sink, {EVENTS:,} events of 500 bytes, 5,000 keys, SENT rows kept",
        0.7,
        "semel",
        "fetch + acknowledge",
        {"fetch + acknowledge": [], "semel": []},
    )
    async with database(url) as storage:
        for run in range(RUNS + 1):
            limit, ours = await _plain_loop(storage), await _projector(storage)
            if run:
                result.sides["fetch + acknowledge"].append(limit)
                result.sides["semel"].append(ours)
    return result


async def _transactions(storage: SqlAlchemyStorage, events: int) -> float:
    async def worker(number: int) -> None:
        for n in range(TRANSACTIONS // CONNECTIONS):
            async with storage.unit_of_work() as uow:
                await uow.session.execute(insert(business), {"text": "x" * 200})
                for _ in range(events):
                    await uow.outbox.add("orders", {"text": "x" * 480}, key=f"{number}-{n}")
                await uow.commit()

    started = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(CONNECTIONS)))
    return TRANSACTIONS / (time.perf_counter() - started)


async def write_with_events(url: str) -> Result:
    """What a keyed event costs a business transaction."""
    result = Result(
        f"a transaction with one keyed event, {CONNECTIONS} connections",
        0.7,
        "with 1 event",
        "without events",
        {"without events": [], "with 1 event": [], "with 10 events": []},
    )
    async with database(url) as storage:
        for run in range(RUNS + 1):
            figures = [await _transactions(storage, events) for events in (0, 1, 10)]
            if run:
                for side, figure in zip(result.sides, figures, strict=True):
                    result.sides[side].append(figure)
    return result
