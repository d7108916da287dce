"""Does the relay suffer from what else goes on in the database?"""

from __future__ import annotations

import asyncpg
from sqlalchemy import text

from benchmarks.databases import dsn, fill, refill, storage
from benchmarks.relaying import Sink, relay
from benchmarks.runner import Bench
from semel import SqlAlchemyStorage


async def ask(bench: Bench) -> None:
    await _open_transaction(bench)
    await _dead_tuples(bench)


async def _open_transaction(bench: Bench) -> None:
    events = bench.size(100_000 if bench.full else 20_000, least=2000)
    async with storage(bench) as made:

        async def undisturbed() -> float:
            await refill(made, events)
            return await relay(made, Sink(events), events)

        async def disturbed() -> float:
            await refill(made, events)
            holder = await asyncpg.connect(dsn(_url(made)))
            transaction = holder.transaction(isolation="repeatable_read")
            await transaction.start()
            # It has written something, and keeps its view of everything.
            await holder.execute("INSERT INTO business (text) VALUES ('held')")
            await holder.fetch("SELECT count(*) FROM outbox")
            try:
                return await relay(made, Sink(events), events)
            finally:
                await transaction.rollback()
                await holder.close()

        sides = await bench.compare(
            {"undisturbed": undisturbed, "a transaction stays open": disturbed}
        )
    bench.answer(
        "open-transaction",
        f"A transaction held open for the whole run, {events:,} events",
        sides,
        "a transaction stays open",
        "undisturbed",
        0.8,
    )


async def _dead_tuples(bench: Bench) -> None:
    dead = bench.size(20_000_000 if bench.full else 200_000, least=10_000)
    events = bench.size(100_000 if bench.full else 20_000, least=2000)
    async with storage(bench) as clean, storage(bench) as littered:
        async with littered.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE outbox SET (autovacuum_enabled = false)"))
        bench.tell(f"{dead:,} dead tuples")
        for start in range(0, dead, 1_000_000):
            await fill(littered, min(1_000_000, dead - start), name=f"dead{start}-")
            async with littered.engine.begin() as connection:
                # By number: a scan would read all that is dead already, each time.
                gone = text("DELETE FROM outbox WHERE sequence > :start")
                await connection.execute(gone, {"start": start})
        rounds = 0

        async def undisturbed() -> float:
            await refill(clean, events)
            return await relay(clean, Sink(events), events)

        async def disturbed() -> float:
            nonlocal rounds
            rounds += 1
            await fill(littered, events, name=f"round{rounds}-")
            return await relay(littered, Sink(events), events)

        sides = await bench.compare({"undisturbed": undisturbed, "among dead tuples": disturbed})
    bench.answer(
        "dead-tuples",
        f"{dead:,} dead tuples in the table, {events:,} events",
        sides,
        "among dead tuples",
        "undisturbed",
        0.8,
    )


def _url(made: SqlAlchemyStorage) -> str:
    return made.engine.url.render_as_string(hide_password=False)
