"""Do more projectors bring more?"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import asyncpg

from benchmarks.databases import dsn, empty, fill, storage
from benchmarks.runner import Bench
from benchmarks.worker import workers
from semel import SqlAlchemyStorage
from semel.sqlalchemy.wakeup import CHANNEL

COUNTS = (1, 2, 4)


async def ask(bench: Bench) -> None:
    for slow in (False, True):
        events = bench.size((100_000 if bench.full else 15_000) // (3 if slow else 1), least=1000)
        settings = (
            {"delay": 0.02, "concurrency": 1, "batch_size": 100} if slow else {"batch_size": 500}
        )
        async with storage(bench) as made:
            sides = await bench.compare(
                {_name(count): partial(_rate, made, events, count, settings) for count in COUNTS}
            )
        kind = "slow-broker" if slow else "sink"
        what = "a broker that takes 20 ms" if slow else "a sink"
        title = f"Projectors in processes of their own, into {what}, {events:,} events"
        # With an idle broker the database and this machine's cores are the limit.
        for count, target in ((2, 1.5 if slow else 1.0), (4, 2.5 if slow else 1.0)):
            bench.answer(f"projectors-{kind}-{count}", title, sides, _name(count), _name(1), target)


def _name(count: int) -> str:
    return f"{count} projector{'s' * (count > 1)}"


async def _rate(
    made: SqlAlchemyStorage, events: int, count: int, settings: dict[str, object]
) -> float:
    """Events per second from the commit of the backlog until the last is acknowledged."""
    url = made.engine.url.render_as_string(hide_password=False)
    await empty(made)
    async with workers(url, count, lease_seconds=6, sleep_idle=0.5, **settings) as running:
        connection = await asyncpg.connect(dsn(url))
        await _shared_out(connection, count)
        filling = asyncio.create_task(fill(made, events))
        await _until(connection, "SELECT EXISTS (SELECT FROM outbox)")
        began = time.perf_counter()
        await connection.execute(f"NOTIFY {CHANNEL}")
        await _until(connection, "SELECT NOT EXISTS (SELECT FROM outbox WHERE lane IS NOT NULL)")
        seconds = time.perf_counter() - began
        await filling
        await connection.close()
        await running.finish()
    return events / seconds


async def _until(connection: asyncpg.Connection, condition: str) -> None:
    while not await connection.fetchval(condition):
        await asyncio.sleep(0.01)


async def _shared_out(connection: asyncpg.Connection, count: int) -> None:
    """Wait until the partitions are shared evenly."""
    while True:
        shares = await connection.fetch(
            "SELECT owner, count(*) AS n FROM outbox_lease WHERE owner IS NOT NULL GROUP BY owner"
        )
        if sorted(row["n"] for row in shares) == [64 // count] * count:
            return
        await asyncio.sleep(0.05)
