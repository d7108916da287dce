"""How fast do events leave the table, with no broker in the way?"""

from __future__ import annotations

from benchmarks import peers
from benchmarks.databases import refill, storage
from benchmarks.relaying import Sink, bare, relay
from benchmarks.runner import Bench, pick

TITLE = "Relay into a sink: {:,} events of 500 bytes, many keys"


async def ask(bench: Bench) -> None:
    events = bench.size(100_000 if bench.full else 20_000, least=2000)
    async with storage(bench) as made:
        url = made.engine.url.render_as_string(hide_password=False)

        async def limit(*, keep: bool) -> float:
            await refill(made, events)
            return await bare(url, events, keep=keep)

        async def semel(**settings: object) -> float:
            await refill(made, events)
            return await relay(made, Sink(events), events, **settings)

        keeping = {
            "limit: bare fetch and update": lambda: limit(keep=True),
            "semel": semel,
            "semel, default settings": lambda: semel(batch=100),
        }
        deleting = {
            "limit: bare fetch and delete": lambda: limit(keep=False),
            "semel, keep_sent=False": lambda: semel(keep_sent=False),
        }
        others = peers.sides(bench, "relay", events=bench.size(5_000, least=1000))
        sides = await bench.compare({**keeping, **deleting, **others})
    title = TITLE.format(events)
    bench.answer(
        "relay-sink",
        f"{title}, SENT rows kept",
        pick(sides, *keeping),
        "semel",
        "limit: bare fetch and update",
        0.7,
    )
    bench.answer(
        "relay-sink-delete",
        f"{title}, SENT rows deleted",
        pick(sides, *deleting),
        "semel, keep_sent=False",
        "limit: bare fetch and delete",
        0.7,
    )
    for name, measured, target in (
        ("relay-sink-peers", "semel", 5.0),
        ("relay-sink-delete-peers", "semel, keep_sent=False", 10.0),
    ):
        peers.answer_beside(bench, name, f"{title}, {measured}", sides, measured, target)
