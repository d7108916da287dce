"""How much memory does a relay with a large backlog take, and how long does the import take?"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import asyncpg

from benchmarks.databases import dsn, empty, fill, settle, storage
from benchmarks.runner import Bench, pick
from benchmarks.worker import workers

_TIME = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
_USE = "from semel import OutboxProjector, SqlAlchemyStorage"


async def ask(bench: Bench) -> None:
    await _memory(bench)
    sides = await bench.compare(
        {
            name: lambda name=name: _import(name)
            for name in ("import sqlalchemy", "import sqlalchemy.ext.asyncio", "import semel", _USE)
        },
        unit="s",
    )
    bench.answer_limit(
        "import", "Import time, each in a process of its own", sides, "import semel", 0.2, "0.2 s"
    )


async def _import(statement: str) -> float:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _TIME.format(statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


async def _memory(bench: Bench) -> None:
    backlog = bench.size(1_000_000 if bench.full else 100_000, least=5000)
    async with storage(bench) as made:
        url = made.engine.url.render_as_string(hide_password=False)

        async def resident() -> dict[str, float]:
            """At the beginning of a backlog and at its end."""
            await empty(made)
            await fill(made, backlog)
            await settle(made)
            watcher = await asyncpg.connect(dsn(url))
            async with workers(url, batch_size=1000) as running:
                early: list[float] = []
                late: list[float] = []
                while left := await watcher.fetchval(
                    "SELECT count(*) FROM outbox WHERE lane IS NOT NULL"
                ):
                    (late if left < backlog / 2 else early).append(running.resident())
                    await asyncio.sleep(0.05)
                await running.finish()
            await watcher.close()
            return {", first half": max(early or late), ", second half": max(late or early)}

        sides = await bench.compare({"semel": resident}, unit="MiB")
    title = f"Memory of a relay with a backlog of {backlog:,}"
    bench.answer_limit("memory", title, sides, "semel, second half", 150.0, "150 MiB")
    bench.answer(
        "memory-flat",
        f"{title}: does it grow?",
        pick(sides, "semel, first half", "semel, second half"),
        "semel, second half",
        "semel, first half",
        1.1,
        at_most=True,
    )
