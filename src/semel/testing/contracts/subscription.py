"""What `Subscription` and `Delivery` promise, as tests."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

from semel.envelope import MessageEnvelope
from semel.protocols import Delivery, MessageBus
from semel.testing.contracts.harness import (
    BusHarness,
    by_key,
    first_occurrences,
    ids,
    message,
    work_until,
)
from semel.testing.reader import Reader
from semel.wire import decode


class SubscriptionContract(BusHarness):
    """The part of `MessageBusContract` about groups, order, deliveries and subscriptions."""

    async def test_every_group(self, bus: MessageBus, topic: str) -> None:
        """Every group gets every message."""
        sent = [message(topic) for _ in range(10)]
        first = await self.read(bus, topic, "first")
        second = await self.read(bus, topic, "second")
        async with first, second:
            await bus.publish_many(sent)
            assert sorted(ids(sent)) == sorted(ids(await first.messages(10)))
            assert sorted(ids(sent)) == sorted(ids(await second.messages(10)))

    async def test_members_share(self, bus: MessageBus, topic: str) -> None:
        """Each message goes to one member of the group."""
        sent = [message(topic, key=f"k{n}") for n in range(40)]
        readers = [await self.read(bus, topic, prefetch=1) for _ in range(2)]
        received: list[str] = []
        done = asyncio.Event()

        async def work(reader: Reader) -> None:
            while True:
                received.extend(ids(await reader.messages(1)))
                if len(received) >= 40:
                    done.set()

        async with readers[0], readers[1]:
            await bus.publish_many(sent)
            await work_until(done, map(work, readers), seconds=self.patience_seconds)
            assert await readers[0].silent(self.quiet_seconds)
            assert await readers[1].silent(self.quiet_seconds)
        assert sorted(ids(sent)) == sorted(received)

    async def test_members_work_at_the_same_time(self, bus: MessageBus, topic: str) -> None:
        """Two members hold messages of different keys at the same time."""
        self.needs("parallel_members")
        readers = [await self.read(bus, topic, prefetch=1) for _ in range(2)]
        async with readers[0], readers[1]:
            for reader in readers:  # a member that comes later may take over what one holds
                await self.connected(reader)
            await bus.publish_many([message(topic, key=f"k{n}") for n in range(40)])
            held = [(await reader.take())[0] for reader in readers]
            assert len({delivery.wire.key for delivery in held}) == 2

    async def test_other_topics_stay_out(self, bus: MessageBus, topic: str) -> None:
        """A subscription gets the messages of its topic only."""
        other = f"{topic}-other"
        await self.prepare(bus, other)
        wanted = message(topic)
        async with await self.read(bus, topic) as reader, await self.read(bus, other):
            await bus.publish_many([message(other), wanted])
            assert [wanted.event_id] == ids(await reader.messages(1))
            assert await reader.silent(self.quiet_seconds)

    async def test_publish_before_subscribe(self, bus: MessageBus, topic: str) -> None:
        """A new group gets what was published before it came."""
        self.needs("replays_to_new_groups")
        sent = [message(topic, key="k", payload=n) for n in range(3)]
        await bus.publish_many(sent)
        async with await self.read(bus, topic) as reader:
            assert ids(sent) == ids(await reader.messages(3))

    async def test_group_waits_for_its_members(self, bus: MessageBus, topic: str) -> None:
        """What is published while a group has no member waits for the next one."""
        async with await self.read(bus, topic):
            pass
        sent = message(topic)
        await bus.publish(sent)
        async with await self.read(bus, topic) as reader:
            assert [sent.event_id] == ids(await reader.messages(1))

    async def test_restart(self, bus: MessageBus, topic: str) -> None:
        """Accepted messages outlive a restart, and acked ones stay acked."""
        self.needs("survives_restart")
        sent = [message(topic, key="k", payload=n) for n in range(4)]
        async with await self.read(bus, topic) as reader:
            await bus.publish_many(sent[:1])
            await reader.messages(1)
        await bus.publish_many(sent[1:])
        await self.restart(bus)
        async with await self.read(bus, topic) as reader:
            assert ids(sent[1:]) == ids(await reader.messages(3))

    async def test_order_under_concurrency(self, bus: MessageBus, topic: str) -> None:
        """Messages of a key arrive in the order in which they were published, key by key."""
        self.needs("ordered")
        sent = [[message(topic, key=f"k{k}", payload=n) for n in range(50)] for k in range(8)]

        async def produce(messages: Sequence[MessageEnvelope]) -> None:
            for start in range(0, len(messages), 10):
                assert not any(await bus.publish_many(messages[start : start + 10]))

        async with await self.read(bus, topic) as reader:
            await asyncio.gather(*(produce(messages) for messages in sent))
            received = by_key(await reader.messages(400))
        assert {f"k{k}": list(range(50)) for k in range(8)} == received

    async def test_order_with_two_members(self, bus: MessageBus, topic: str) -> None:
        """While a member holds a message of a key, no other member gets a later one of it."""
        self.needs("ordered")
        # In runs: an idle member finds the next message of a key that is held by the other.
        sent = [message(topic, key=f"k{n // 20}", payload=n) for n in range(100)]
        holders: defaultdict[str | None, set[int]] = defaultdict(set)
        seen: list[MessageEnvelope] = []
        done = asyncio.Event()

        async def work(number: int, reader: Reader) -> None:
            while True:
                (delivery,) = await reader.take()
                key = delivery.wire.key
                holders[key].add(number)
                assert {number} == holders[key]
                seen.append(decode(delivery.wire))
                await asyncio.sleep(0.001)  # the work, during which the other member may go wrong
                holders[key].discard(number)
                await delivery.ack()
                if len(seen) >= 100:
                    done.set()

        readers = [await self.read(bus, topic, prefetch=1) for _ in range(2)]
        async with readers[0], readers[1]:
            await bus.publish_many(sent)
            await work_until(done, map(work, (0, 1), readers), seconds=self.patience_seconds)
        assert by_key(sent) == by_key(first_occurrences(seen))

    async def test_prefetch_is_bounded(self, bus: MessageBus, topic: str) -> None:
        """No more than *prefetch* deliveries are open, and an ack makes room for the next."""
        async with await self.read(bus, topic, prefetch=3) as reader:
            await bus.publish_many([message(topic, key=f"k{n}") for n in range(10)])
            held = await reader.take(3)
            assert await reader.silent(self.quiet_seconds)
            await held[0].ack()
            assert len(await reader.take()) == 1

    async def test_acked_is_done(self, bus: MessageBus, topic: str) -> None:
        """An acked message never comes again to its group."""
        sent = [message(topic, key="k", payload=n) for n in range(2)]
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent[0])
            await reader.messages(1)
        await bus.publish(sent[1])
        async with await self.read(bus, topic) as reader:
            assert [sent[1].event_id] == ids(await reader.messages(1))
            assert await reader.silent(self.quiet_seconds)

    async def test_unacked_comes_again(self, bus: MessageBus, topic: str) -> None:
        """What was not acked goes back when its subscription closes, in order."""
        self.needs("redelivers_on_close")
        sent = [message(topic, key="k", payload=n) for n in range(3)]
        async with await self.read(bus, topic) as reader:
            await bus.publish_many(sent)
            (first,) = await reader.take()
            await first.ack()
            await reader.take()
        async with await self.read(bus, topic) as reader:
            assert ids(sent[1:]) == ids(await reader.messages(2))

    async def test_other_member_takes_over(self, bus: MessageBus, topic: str) -> None:
        """When a member closes, another one gets what it held."""
        self.needs("redelivers_on_close")
        sent = message(topic, key="k")
        async with await self.read(bus, topic) as gone:
            await bus.publish(sent)
            await gone.take()
        async with await self.read(bus, topic) as stays:
            assert [sent.event_id] == ids(await stays.messages(1))

    async def test_nack(self, bus: MessageBus, topic: str) -> None:
        """A nacked message comes again, and nothing else is lost."""
        sent = message(topic, key="k")
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent)
            (delivery,) = await reader.take()
            await delivery.nack()
            assert [sent.event_id] == ids(await reader.messages(1))
            assert await reader.silent(self.quiet_seconds)

    async def test_nack_with_delay(self, bus: MessageBus, topic: str) -> None:
        """A message that was nacked with a delay does not come before it."""
        self.needs("delays_nack")
        async with await self.read(bus, topic) as reader:
            await bus.publish(message(topic, key="k"))
            (delivery,) = await reader.take()
            began = time.monotonic()
            await delivery.nack(delay=0.5)
            (again,) = await reader.take()
            assert time.monotonic() - began >= 0.45
            await again.ack()

    async def test_attempts(self, bus: MessageBus, topic: str) -> None:
        """The first delivery is attempt 1, and redeliveries count on."""
        async with await self.read(bus, topic) as reader:
            await bus.publish(message(topic, key="k"))
            (first,) = await reader.take()
            await first.nack()
            (second,) = await reader.take()
            await second.ack()
        assert first.attempt == 1
        if self.counts_attempts:
            assert second.attempt == 2
        assert isinstance(second, Delivery)

    async def test_close_ends_the_iteration(self, bus: MessageBus, topic: str) -> None:
        """Closing a subscription, twice even, ends a waiting iteration."""
        reader = await self.read(bus, topic)
        assert await reader.silent(0.01)
        await reader.subscription.close()
        await reader.subscription.close()
        await reader.ended()

    async def test_bus_closes_its_subscriptions(self, bus: MessageBus, topic: str) -> None:
        """Closing the bus ends all iterations."""
        readers = [await self.read(bus, topic, group) for group in ("first", "second")]
        await bus.close()
        for reader in readers:
            await reader.ended()

    async def test_is_connected(self, bus: MessageBus, topic: str) -> None:
        """A subscription is connected until it is closed."""
        async with await self.read(bus, topic) as reader:
            await self.connected(reader)
        assert not reader.subscription.is_connected()

    async def test_lag(self, bus: MessageBus, topic: str) -> None:
        """The lag is what waits for the group: it grows with publishing and ends with acking."""
        async with await self.read(bus, topic, prefetch=1) as reader:
            await bus.publish_many([message(topic, key="k") for _ in range(5)])
            (held,) = await reader.take()
            lag = await reader.subscription.lag()
            if not self.reports_lag:
                assert lag is None
                return
            assert lag in (4, 5)  # brokers differ on whether a delivered message still waits
            await held.ack()
            await reader.messages(4)
            async with asyncio.timeout(self.patience_seconds):
                while await reader.subscription.lag():  # noqa: ASYNC110  no event tells it
                    await asyncio.sleep(0.05)
