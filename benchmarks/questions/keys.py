"""Do keys in trouble hold up the others?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import peers
from benchmarks.databases import MANY_KEYS, ONE_KEY, block, empty, fill, settle, storage
from benchmarks.relaying import Sink, relay
from benchmarks.runner import Bench
from semel import MessageEnvelope, SqlAlchemyStorage
from semel.errors import PublishError

OTHERS = 20
OTHER_KEYS = (f"'other-' || n % {OTHERS}", f"n % {OTHERS}")


async def ask(bench: Bench) -> None:
    await _hot_key(bench)
    await _rejections(bench)
    await _blocked_key(bench)


def _is_other(message: MessageEnvelope) -> bool:
    return message.key is not None and message.key.startswith("other")


async def _hot_key(bench: Bench) -> None:
    """The events of one key beside the same number of events of many keys."""
    hot, each = bench.size(10_000, least=1000), bench.size(1000, least=50)
    async with storage(bench) as made:

        async def prepare(keys: tuple[str, str]) -> None:
            await empty(made)
            await fill(made, hot, keys=keys)
            await fill(made, OTHERS * each, keys=OTHER_KEYS, name="other-")
            await settle(made)

        async def others(keys: tuple[str, str]) -> float:
            await prepare(keys)
            return await relay(made, Sink(OTHERS * each, counts=_is_other), OTHERS * each)

        async def the_hot_one() -> float:
            await prepare(ONE_KEY)
            return await relay(made, Sink(hot, counts=lambda m: not _is_other(m)), hot)

        sides = await bench.compare(
            {
                "others, undisturbed": lambda: others(MANY_KEYS),
                "others, beside a hot key": lambda: others(ONE_KEY),
            }
        )
        title = f"A hot key with {hot:,} events, and {OTHERS} others with {each:,} each"
        bench.answer(
            "hot-key", title, sides, "others, beside a hot key", "others, undisturbed", 0.9
        )
        if bench.peers:
            rivals = peers.sides(bench, "hot", hot=hot, others=OTHERS, seconds=20)
            sides = await bench.compare({"semel, hot key": the_hot_one, **rivals})
            peers.answer_beside(
                bench, "hot-key-peers", f"{title}: the hot key", sides, "semel, hot key", 5.0
            )


class Rejecting(Sink):
    """Rejects the first attempt of each event of one key in a hundred."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._seen: set[str] = set()

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        results = list(await super().publish_many(messages))
        failed: set[str] = set()
        for index, message in enumerate(messages):
            if not is_unlucky(message):
                continue
            if message.key in failed or message.event_id not in self._seen:
                self._seen.add(message.event_id)
                failed.add(str(message.key))
                results[index] = PublishError("not now")
        return results


def is_unlucky(message: MessageEnvelope) -> bool:
    """Whether the event's key is one of the hundredth part."""
    return str(message.key).removeprefix("k").endswith("00") or message.key == "k0"


async def _rejections(bench: Bench) -> None:
    events = bench.size(40_000 if bench.full else 20_000, least=4000)
    async with storage(bench) as made:

        async def rate(kind: type[Sink]) -> float:
            await empty(made)
            await fill(made, events)
            await settle(made)
            lucky = sum(1 for n in range(1, events + 1) if not _unlucky_number(n))
            sink = kind(lucky, counts=lambda message: not is_unlucky(message))
            return await relay(made, sink, lucky, max_retry_attempts=1000)

        sides = await bench.compare(
            {
                "others, undisturbed": lambda: rate(Sink),
                "others, 1 % rejected": lambda: rate(Rejecting),
            }
        )
    bench.answer(
        "rejections",
        f"One key in a hundred is rejected at first, {events:,} events",
        sides,
        "others, 1 % rejected",
        "others, undisturbed",
        0.9,
    )


def _unlucky_number(number: int) -> bool:
    key = str(number % 997)
    return key.endswith("00") or key == "0"


async def _blocked_key(bench: Bench) -> None:
    behind = bench.size(100_000 if bench.full else 50_000, least=5000)
    events = bench.size(20_000 if bench.full else 10_000, least=2000)
    async with storage(bench) as free, storage(bench) as blocked:
        await block(blocked, *ONE_KEY)
        await fill(blocked, behind, keys=ONE_KEY, name="behind-")
        await settle(blocked)
        rounds = 0

        async def rate(made: SqlAlchemyStorage) -> float:
            nonlocal rounds
            rounds += 1
            await fill(made, events, name=f"round{rounds}-")
            return await relay(made, Sink(events), events)

        # The first round, which is discarded, meets the rows and parks them.
        sides = await bench.compare(
            {
                "others, undisturbed": lambda: rate(free),
                "others, beside a blocked key": lambda: rate(blocked),
            }
        )
    bench.answer(
        "blocked-key",
        f"A blocked key with {behind:,} events behind it, {events:,} events of others",
        sides,
        "others, beside a blocked key",
        "others, undisturbed",
        0.9,
    )
