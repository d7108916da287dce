"""How near does the relay come to what the broker takes?"""

from __future__ import annotations

from benchmarks.brokers import BROKERS
from benchmarks.databases import refill, storage
from benchmarks.relaying import CountingBus, Sink, relay
from benchmarks.runner import Absent, Bench

TARGETS = {"RabbitMQ classic": 0.9}


async def ask(bench: Bench) -> None:
    for name in BROKERS:
        bench.absent = {}
        try:
            await _ask(bench, name)
        except Absent as reason:
            bench.tell(str(reason))


async def _ask(bench: Bench, name: str) -> None:
    events = bench.size(100_000 if bench.full else 10_000, least=2000)
    async with BROKERS[name](bench) as broker, storage(bench) as made:

        async def sink() -> float:
            await refill(made, events)
            return await relay(made, Sink(events), events)

        async def semel() -> float:
            await refill(made, events, topic=broker.topic)
            return await relay(made, CountingBus(broker.bus, events), events)

        sides = await bench.compare(
            {
                "limit: bare producer": lambda: broker.bare(events),
                "limit: relay into a sink": sink,
                "semel": semel,
            }
        )
    bench.answer(
        f"relay-{name.lower().replace(' ', '-')}",
        f"Relay to {name}: {events:,} events of 500 bytes, many keys",
        sides,
        "semel",
        ["limit: bare producer", "limit: relay into a sink"],
        TARGETS.get(name, 0.75),
    )
