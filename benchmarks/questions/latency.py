"""How soon is an event published after its commit begins, by a relay in another process?"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from benchmarks.databases import TEXT, dsn, empty, storage
from benchmarks.relaying import Sink
from benchmarks.runner import Bench, pick
from benchmarks.worker import workers
from semel import (
    MessageEnvelope,
    OutboxProjector,
    OutboxProjectorConfig,
    RetryPolicy,
    SqlAlchemyStorage,
)
from semel.errors import PublishError
from semel.settings import TopicPolicy

UNIT = "ms"
CONNECTIONS = 8
TRANSACTIONS = 100
RETRY_SECONDS = 0.5
_INSERT = "INSERT INTO bare (stamp, payload) SELECT $1, unnest($2::json[])"
_TABLE = "CREATE TABLE IF NOT EXISTS bare (id BIGSERIAL PRIMARY KEY, stamp BIGINT, payload JSON)"


async def ask(bench: Bench) -> None:
    for each in (1, 10):
        await _commit_to_publish(bench, each)
    await _due_times(bench)


async def _commit_to_publish(bench: Bench, each: int) -> None:
    """So many events per transaction."""
    count, per_second = bench.size(1000 if bench.full else 200, least=50), TRANSACTIONS * each
    async with storage(bench) as made:
        url = made.engine.url.render_as_string(hide_password=False)

        async def semel() -> dict[str, float]:
            await empty(made)
            began: dict[str, int] = {}

            async def write(*, warm: bool = False) -> None:
                async with made.unit_of_work() as uow:
                    await uow.session.connection()  # as on the other side, it has begun
                    added = [
                        await uow.outbox.add("orders", {"text": TEXT}, key=f"k{number}")
                        for number in range(each)
                    ]
                    if not warm:
                        began.update(dict.fromkeys((row.id for row in added), time.monotonic_ns()))
                    await uow.commit()

            async with workers(url, notes=True) as running:
                await warm_up(write)
                await paced(write, count)
                await _until_sent(url)
                ended = await running.finish()
            return quantiles([(ended[event] - moment) / 1e6 for event, moment in began.items()])

        sides = await bench.compare(
            {
                "limit: bare LISTEN and NOTIFY": lambda: _bare(url, count, each),
                "semel": semel,
            },
            unit=UNIT,
        )
    for part in (", p50", ", p99"):
        limit, ours = f"limit: bare LISTEN and NOTIFY{part}", f"semel{part}"
        bench.answer(
            f"latency-{per_second}{part.replace(', ', '-')}",
            f"Commit to publish with an idle relay, {per_second:,} events/s{part}",
            pick(sides, limit, ours),
            ours,
            limit,
            2.0,
            at_most=True,
        )


async def _until_sent(url: str) -> None:
    connection = await asyncpg.connect(dsn(url))
    while await connection.fetchval("SELECT EXISTS (SELECT FROM outbox WHERE lane IS NOT NULL)"):
        await asyncio.sleep(0.05)
    await connection.close()


async def paced(write: Callable[[], Awaitable[None]], count: int) -> None:
    """Call *write* `TRANSACTIONS` times a second, at most `CONNECTIONS` at a time."""
    places = asyncio.Semaphore(CONNECTIONS)
    began = time.monotonic()

    async def one() -> None:
        async with places:
            await write()

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            wait = began + number / TRANSACTIONS - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            group.create_task(one())


async def warm_up(write: Callable[..., Awaitable[None]]) -> None:
    """Let every connection be opened, and prepare its statements."""
    for _ in range(3):
        await asyncio.gather(*(write(warm=True) for _ in range(CONNECTIONS)))


def quantiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile, as names of sides end."""
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {", p50": cuts[49], ", p99": cuts[98]}


async def _bare(url: str, count: int, each: int) -> dict[str, float]:
    """Insert and notify in one transaction; a listener reads and deletes what has come."""
    pool = await asyncpg.create_pool(dsn(url), min_size=CONNECTIONS, max_size=CONNECTIONS)
    listener, reader = await asyncpg.connect(dsn(url)), await asyncpg.connect(dsn(url))
    await reader.execute(_TABLE)
    woken, found = asyncio.Event(), []
    await listener.add_listener("bare", lambda *_: woken.set())

    async def write(*, warm: bool = False) -> None:
        async with pool.acquire() as connection, connection.transaction():
            payloads = [json.dumps({"text": TEXT}) for _ in range(each)]
            await connection.execute(_INSERT, None if warm else time.monotonic_ns(), payloads)
            await connection.execute("NOTIFY bare")

    async def read() -> None:
        while len(found) < count * each:
            await woken.wait()
            woken.clear()
            rows = await reader.fetch("DELETE FROM bare RETURNING stamp, payload")
            now = time.monotonic_ns()
            found.extend((now - stamp) / 1e6 for stamp, _ in rows if stamp is not None)

    reading = asyncio.create_task(read())
    await warm_up(write)
    await paced(write, count)
    await reading
    await asyncio.gather(pool.close(), listener.close(), reader.close())
    return quantiles(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactly(RetryPolicy):
    """Waits as long as was said: what is measured is how late it is."""

    jitter: bool = False


class FailingOnce(Sink):
    """Rejects each event once, and notes how long after its due time it came back."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.late: list[float] = []
        self._rejected: dict[str, float] = {}

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        now, results = time.perf_counter(), []
        for message in messages:
            first = self._rejected.pop(message.event_id, None)
            if first is None:
                self._rejected[message.event_id] = now
                results.append(PublishError("not now"))
            else:
                self.late.append(1000 * (now - first - RETRY_SECONDS))
                results.append(None)
        if len(self.late) >= self._wanted:
            self.full.set()
        return results


async def _due_times(bench: Bench) -> None:
    count = bench.size(400 if bench.full else 200, least=50)
    async with storage(bench) as made:

        async def semel() -> dict[str, float]:
            await empty(made)
            return quantiles(await _lateness(made, count))

        sides = await bench.compare({"semel": semel}, unit=UNIT)
    bench.answer_limit(
        "retry-due-time",
        "How late a retry is after its due time, p99",
        pick(sides, "semel, p99"),
        "semel, p99",
        50.0,
        "50 ms",
    )


async def _lateness(made: SqlAlchemyStorage, count: int) -> list[float]:
    sink = FailingOnce(count)
    policy = TopicPolicy(retry=Exactly(base_seconds=RETRY_SECONDS, max_attempts=1000))
    projector = OutboxProjector(
        message_bus=sink,
        tenant_id=None,
        store=made.relay,
        config=OutboxProjectorConfig(topics={"orders": policy}),
    )
    task: asyncio.Task[Any] = asyncio.create_task(projector.run_forever())

    async def write() -> None:
        async with made.unit_of_work() as uow:
            await uow.outbox.add("orders", {"text": TEXT})
            await uow.commit()

    await paced(write, count)
    await sink.full.wait()
    await projector.stop()
    await task
    return sink.late
