"""Members and brokers that come, go and die, while messages are published and consumed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from semel.errors import BusError
from semel.testing.contracts.harness import ids, work_until
from semel.testing.reader import Reader
from semel.transports.kafka import KafkaMessageBus
from semel.wire import decode
from tests.transports.kafka_tools import a_bus, keyed, new_topic, read  # noqa: F401  a fixture

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).parents[2]


class Effects:
    """What consumers did, once per message; checks the order of each key."""

    def __init__(self, expected: int) -> None:
        self.done = asyncio.Event()
        self.deliveries = 0
        self._expected = expected
        self._seen: set[str] = set()
        self._last: dict[str | None, int] = defaultdict(lambda: -1)

    async def work(self, subscription) -> None:
        async for delivery in subscription:
            event = decode(delivery.wire)
            self.deliveries += 1
            if event.event_id not in self._seen:
                self._seen.add(event.event_id)
                assert self._last[event.order_key] < event.payload, "out of order"
                self._last[event.order_key] = event.payload
                if len(self._seen) == self._expected:
                    self.done.set()
            await asyncio.sleep(0.002)  # the work
            with suppress(BusError):  # the partition has gone: it comes again
                await delivery.ack()


async def test_rebalances(service, bus):
    """Members come and go every two seconds: nothing lost, order kept, effects once."""
    topic = await new_topic(bus, partitions=4)
    effects, began = Effects(2000), time.monotonic()
    rounds = 0

    async def stay() -> None:
        await effects.work(await bus.subscribe(topic, group=topic, prefetch=20))

    async def come_and_go() -> None:
        nonlocal rounds
        while True:
            subscription = await bus.subscribe(topic, group=topic, prefetch=20)
            worker = asyncio.create_task(effects.work(subscription))
            await asyncio.sleep(2)
            await subscription.close()
            await worker
            rounds += 2
            await asyncio.sleep(2)

    async def publish() -> None:
        sent = keyed(topic, 2000, keys=20)
        for start in range(0, 2000, 100):
            assert not any(await bus.publish_many(sent[start : start + 100]))
            await asyncio.sleep(0.5)
        await asyncio.Event().wait()

    await work_until(effects.done, (stay(), come_and_go(), publish()), seconds=60)
    seconds = time.monotonic() - began
    print(
        f"\n2000 messages in {seconds:.1f} s, {rounds} rebalances, {effects.deliveries} deliveries"
    )
    assert rounds >= 4
    assert effects.deliveries < 2400


async def test_idle_member_leaves(bus):
    """A member without partitions leaves no ghost for which the others would wait."""
    topic = await new_topic(bus)
    first = await read(bus, topic)
    async with first:
        await connected(first)
        async with await read(bus, topic) as idle:
            await connected(idle)
    async with await read(bus, topic) as reader:
        await bus.publish_many(keyed(topic, 1))
        assert ["0"] == ids(await reader.messages(1))


async def connected(reader: Reader) -> None:
    async with asyncio.timeout(20):
        while not reader.subscription.is_connected():
            await asyncio.sleep(0.01)


HOLDER = """
import asyncio, sys
from semel.transports.kafka import KafkaMessageBus

async def main():
    bus = KafkaMessageBus(sys.argv[1], consumer_options={"session.timeout.ms": 6000})
    async for delivery in await bus.subscribe(sys.argv[2], group=sys.argv[2]):
        if delivery.wire.headers["message_id"] == "0":
            await delivery.ack()
            await asyncio.sleep(1)
        else:
            print("holds", flush=True)

asyncio.run(main())
"""


async def test_killed_consumer(service):
    """What a member held when it was killed comes to another one; what it acked does not."""
    options = {"session.timeout.ms": 6000}
    async with KafkaMessageBus(service("kafka"), consumer_options=options) as bus:
        topic = await new_topic(bus)
        await bus.publish_many(keyed(topic, 3))
        command = (sys.executable, "-c", HOLDER, service("kafka"), topic)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        holder = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, env=environment
        )
        try:
            async with asyncio.timeout(30):
                assert await holder.stdout.readline() == b"holds\n"
        finally:
            holder.send_signal(signal.SIGKILL)
            await holder.wait()
        async with await read(bus, topic) as reader:
            again = await reader.take(2)
            assert ["1", "2"] == [d.wire.headers["message_id"] for d in again]
            assert [2, 2] == [d.attempt for d in again], "the first was lost with its process"


async def services(*arguments: str) -> int:
    """Run scripts/services on the server that it started, if it did."""
    environment = {k: v for k, v in os.environ.items() if k != "SEMEL_TEST_KAFKA_URL"}
    process = await asyncio.create_subprocess_exec(
        *(str(ROOT / "scripts/services"), *arguments),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return await process.wait()


@pytest.mark.slow
async def test_killed_broker(service):
    """The broker dies and comes back while we publish and consume: nothing lost, order kept."""
    # The group forgets its member meanwhile: the harder case, and no longer wait for the old one.
    options = {"session.timeout.ms": 6000}
    async with KafkaMessageBus(
        service("kafka"), timeout_seconds=5, consumer_options=options
    ) as bus:
        topic = await new_topic(bus, partitions=4)
        effects = Effects(2000)
        failures: list[str] = []

        async def publish(number: int) -> None:
            """Publish one key's messages, and again those that were not confirmed."""
            waiting = [m for m in keyed(topic, 2000, keys=8) if m.order_key == f"k{number}"]
            while waiting:
                results = await bus.publish_many(waiting[:10])
                failed = [result for result in results if result]
                failures.extend(result.kind for result in failed)
                waiting = waiting[len(results) - len(failed) :]
                await asyncio.sleep(0.1)
            await asyncio.Event().wait()

        async def kill() -> None:
            await asyncio.sleep(1)
            if await services("kill", "kafka"):
                pytest.skip("this Kafka was not started by scripts/services")
            assert await services("start", "kafka") == 0
            await asyncio.Event().wait()

        subscription = await bus.subscribe(topic, group=topic, prefetch=50)
        workers = (effects.work(subscription), kill(), *(publish(n) for n in range(8)))
        await work_until(effects.done, workers, seconds=110)
        print(f"\n{len(failures)} failures {set(failures)}, {effects.deliveries} deliveries")
        assert {"destination", "unknown"} >= set(failures)
        await bus.ping()
        assert subscription.is_connected()
