"""Does a large backlog slow the relay down?"""

from __future__ import annotations

from benchmarks.databases import fill, refill, settle, storage
from benchmarks.relaying import Sink, relay
from benchmarks.runner import Bench, Measure


async def ask(bench: Bench) -> None:
    sizes = (10_000, 1_000_000, 10_000_000) if bench.full else (10_000, 150_000)
    sizes = tuple(bench.size(size, least=1000) for size in sizes)
    smallest, *larger = sizes
    for number, size in enumerate(larger, 1):
        # The smallest again beside each: a quarter of an hour may lie between them.
        async with storage(bench) as small, storage(bench) as large:
            share = min(100_000, size // (bench.rounds + 2))
            bench.tell(f"a backlog of {size:,}")
            await fill(large, size)
            await settle(large)

            async def drain_small(made=small) -> float:
                await refill(made, smallest)
                return await relay(made, Sink(smallest), smallest)

            async def drain_part(made=large, share=share) -> float:
                # Each round takes the next part of the same backlog.
                sink = Sink(share)
                rate = await relay(made, sink, 1)
                return rate * sink.count

            measures: dict[str, Measure] = {
                f"backlog of {smallest:,}": drain_small,
                f"backlog of {size:,}": drain_part,
            }
            sides = await bench.compare(measures)
        bench.answer(
            f"backlog-{number}",
            f"A backlog of {size:,} events",
            sides,
            f"backlog of {size:,}",
            f"backlog of {smallest:,}",
            0.7,
        )
