"""How near do the bus and the relay come to what the broker takes?"""

from __future__ import annotations

from benchmarks.brokers import BROKERS
from benchmarks.cores import Usage
from benchmarks.databases import refill, storage
from benchmarks.relaying import CountingBus, Sink, relay
from benchmarks.runner import Absent, Bench, pick

BARE, SINK, BUS = "limit: bare producer", "limit: relay into a sink", "semel: publish_many"
#: So many that the beginning and the end of a run do not count.
EVENTS = {"Kafka": 80_000}
BUS_TARGETS = {"Kafka": 0.8, "RabbitMQ quorum": 0.8}
RELAY_TARGETS = {"RabbitMQ classic": 0.9, "Pulsar": None}


async def ask(bench: Bench) -> None:
    for name in BROKERS:
        bench.absent = {}
        try:
            await _ask(bench, name)
        except Absent as reason:
            bench.tell(str(reason))


async def _ask(bench: Bench, name: str) -> None:
    events = bench.size(100_000 if bench.full else EVENTS.get(name, 20_000), least=2000)
    usage = Usage()
    async with BROKERS[name](bench) as broker, storage(bench) as made:

        async def sink() -> float:
            await refill(made, events)
            return await relay(made, Sink(events), events)

        async def semel() -> float:
            await refill(made, events, topic=broker.topic)
            with usage.watch():
                return await relay(made, CountingBus(broker.bus, events), events)

        sides = await bench.compare(
            {
                BARE: lambda: broker.bare(events),
                SINK: sink,
                BUS: lambda: broker.publish_many(events),
                "semel": semel,
            }
        )
    label, what = name.lower().replace(" ", "-"), f"{events:,} events of 500 bytes, many keys"
    bench.answer(
        f"publish-{label}",
        f"Publish to {name}: {what}",
        pick(sides, BARE, BUS),
        BUS,
        BARE,
        BUS_TARGETS.get(name, 0.7),
    )
    bench.answer(
        f"relay-{label}",
        f"Relay to {name}: {what}",
        pick(sides, BARE, SINK, "semel"),
        "semel",
        [BARE, SINK],
        RELAY_TARGETS.get(name, 0.75),
        note=shared_cores(*(sides[side].median for side in (BARE, SINK, "semel")), usage),
    )


def shared_cores(bare: float, sink: float, reached: float, usage: Usage) -> str:
    """Say how far the relay gets beside the work of both limits together.

    Each limit has all cores for itself; the relay, its database and its broker share them.
    """
    together = 1 / (1 / bare + 1 / sink)
    return (
        f"Each limit had the machine for itself. The work of both together, at the speed of each, "
        f"would be {together:,.0f} events/s; semel reaches {reached / together:.2f} of that. "
        f"While it ran, {usage}"
    )
