"""The relay and the inbox on MariaDB and SQLite."""

from __future__ import annotations

from benchmarks.databases import refill, storage
from benchmarks.questions import inbox
from benchmarks.relaying import Sink, bare, relay
from benchmarks.runner import Absent, Bench, pick

BACKENDS = {"mariadb": "MariaDB", "sqlite": "SQLite"}


async def ask(bench: Bench) -> None:
    for backend, name in BACKENDS.items():
        bench.absent = {}
        try:
            await _ask(bench, backend, name)
        except Absent as reason:
            bench.tell(str(reason))


async def _ask(bench: Bench, backend: str, name: str) -> None:
    events = bench.size(50_000 if bench.full else 20_000, least=1000)
    messages = bench.size(2000 if bench.full else 300, least=100)
    async with storage(bench, backend) as made:
        url = made.engine.url.render_as_string(hide_password=False)

        async def limit() -> float:
            await refill(made, events)
            return await bare(url, events)

        async def semel() -> float:
            await refill(made, events)
            return await relay(made, Sink(events), events)

        sides = await bench.compare({"limit: bare fetch and update": limit, "semel": semel})
        bench.answer(
            f"relay-{backend}",
            f"Relay into a sink on {name}, {events:,} events",
            sides,
            "semel",
            "limit: bare fetch and update",
            0.6,
        )
        found = await bench.compare(inbox.sides(made, messages), unit=inbox.UNIT)
        bench.answer(
            f"inbox-{backend}",
            f"Inbox on {name}, {messages:,} messages by {inbox.WORKERS} workers",
            pick(found, inbox.BARE, inbox.SINGLE),
            inbox.SINGLE,
            inbox.BARE,
            0.6,
        )
