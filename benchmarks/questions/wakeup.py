"""Do the wake-ups that writers send cost them anything?"""

from __future__ import annotations

import asyncpg

from benchmarks.databases import dsn, empty, storage
from benchmarks.questions.write import UNIT, transactions
from benchmarks.runner import Bench
from semel.sqlalchemy.wakeup import CHANNEL

CONNECTIONS = 16


async def ask(bench: Bench) -> None:
    count = bench.size(8000 if bench.full else 1200, least=160)
    async with storage(bench) as loud, storage(bench, notify=False) as silent:
        listener = await asyncpg.connect(dsn(loud.engine.url.render_as_string(hide_password=False)))
        heard = 0

        def note(*_: object) -> None:
            nonlocal heard
            heard += 1

        await listener.add_listener(CHANNEL, note)

        async def rate(made) -> float:
            await empty(made)
            return await transactions(made.session_factory, count, 1, CONNECTIONS)

        sides = await bench.compare(
            {
                "limit: without wake-ups": lambda: rate(silent),
                "semel, with wake-ups": lambda: rate(loud),
            },
            unit=UNIT,
        )
        await listener.close()
    assert heard, "nobody was woken: this measures nothing"
    bench.answer(
        "wake-up",
        f"Writers with {CONNECTIONS} connections and one event each, with and without wake-ups",
        sides,
        "semel, with wake-ups",
        "limit: without wake-ups",
        0.97,
    )
