"""What `MessageLog` promises, as tests."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from semel.envelope import MessageEnvelope
from semel.protocols import LogEntry, MessageBus, MessageLog
from semel.testing.contracts.harness import BusHarness, message


class MessageLogContract(BusHarness):
    """Tests of a bus that keeps its messages. A subclass gives a fixture `bus`, started."""

    async def test_empty_topic(self, bus: MessageLog, topic: str) -> None:
        """A new topic has logs, and nothing in them."""
        bounds = await bus.bounds(topic)
        assert bounds
        assert all(first == end for first, end in bounds.values())
        assert not await bus.read(topic, {log: end for log, (_, end) in bounds.items()}, limit=10)

    async def test_everything_below_the_end_can_be_read(self, bus: MessageLog, topic: str) -> None:
        """What was published is between the bounds, each message once, without gaps."""
        start = {log: end for log, (_, end) in (await bus.bounds(topic)).items()}
        sent = [message(topic, key=f"k{n % 5}", payload=n) for n in range(40)]
        await _publish(bus, sent)

        read = await bus.read(topic, start, limit=100)
        ends = {log: end for log, (_, end) in (await bus.bounds(topic)).items()}

        assert sorted(each.event_id for each in sent) == sorted(map(_id, read))
        positions = defaultdict(list)
        for entry in read:
            positions[entry.log].append(entry.position)
        for log, found in positions.items():
            assert list(range(start[log], ends[log])) == found

    async def test_a_key_is_in_one_log_in_order(self, bus: MessageLog, topic: str) -> None:
        """Messages of a key come from one log, in the order in which they were published."""
        start = {log: end for log, (_, end) in (await bus.bounds(topic)).items()}
        sent = [message(topic, key="one", payload=n) for n in range(10)]
        await _publish(bus, sent)

        read = await bus.read(topic, start, limit=100)

        assert 1 == len({entry.log for entry in read})
        assert [each.event_id for each in sent] == list(map(_id, read))

    async def test_limit_and_going_on(self, bus: MessageLog, topic: str) -> None:
        """A log gives at most the limit; the next read begins where that one ended."""
        start = {log: end for log, (_, end) in (await bus.bounds(topic)).items()}
        sent = [message(topic, key="one", payload=n) for n in range(5)]
        await _publish(bus, sent)

        first = await bus.read(topic, start, limit=3)
        place = {first[-1].log: first[-1].position + 1}
        second = await bus.read(topic, place, limit=3)

        assert [each.event_id for each in sent] == [*map(_id, first), *map(_id, second)]
        assert 3 == len(first)

    async def test_reading_changes_nothing(self, bus: MessageLog, topic: str) -> None:
        """Anybody may read the same messages again."""
        start = {log: end for log, (_, end) in (await bus.bounds(topic)).items()}
        await _publish(bus, [message(topic)])

        assert await bus.read(topic, start, limit=5) == await bus.read(topic, start, limit=5)

    async def test_listen(self, bus: MessageLog, topic: str) -> None:
        """A message wakes whoever listens, until it stops listening."""
        await bus.bounds(topic)
        woken = asyncio.Event()
        stop = bus.listen(woken.set)
        await _publish(bus, [message(topic)])
        async with asyncio.timeout(self.patience_seconds):
            await woken.wait()

        stop()
        woken.clear()
        await _publish(bus, [message(topic)])
        assert not woken.is_set()


async def _publish(bus: MessageLog, messages: Sequence[MessageEnvelope]) -> None:
    assert not any(await cast("MessageBus", bus).publish_many(messages))


def _id(entry: LogEntry) -> str:
    return entry.wire.headers["message_id"]
