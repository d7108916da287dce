"""RabbitMQ in trouble: a node of its own is killed, starved and cut off."""

import asyncio
import logging
import os
import sys
from urllib.parse import urlsplit

import pytest

from semel.errors import BusError, PublishError
from semel.testing.contracts.harness import by_key, first_occurrences, ids, message
from semel.testing.reader import Reader
from semel.transports.rabbitmq import RabbitMQMessageBus
from tests.proxy import Proxy
from tests.transports.rabbitmq_tools import (  # noqa: F401  some are fixtures
    ROOT,
    a_node,
    collect,
    kinds,
    publish_all,
)

pytestmark = [pytest.mark.rabbitmq, pytest.mark.slow]


@pytest.fixture
def topic(request):
    return request.node.name.replace("[", "-").rstrip("]")


def keyed(topic, count, keys=4, start=0):
    numbers = range(start, start + count)
    return [message(topic, key=f"k{n % keys}", payload=n) for n in numbers]


async def read(bus, topic):
    return Reader(await bus.subscribe(topic, group="group"), patience_seconds=60)


# Refusals


async def refused(bus, topic):
    """Return the error of a bus that cannot connect."""
    with pytest.raises(BusError) as caught:
        await bus.start()
    with pytest.raises(PublishError) as published:
        await bus.publish(message(topic))
    assert published.value.kind == "destination"
    await bus.close()
    return str(caught.value)


async def test_wrong_password(node, topic, caplog):
    """A refused login is the destination's trouble, and the password is nowhere."""
    caplog.set_level(logging.DEBUG)
    text = await refused(RabbitMQMessageBus(node.url_of("semel", "s3cret")), topic)
    assert "login" in text
    assert "s3cret" not in text + caplog.text


async def test_unknown_vhost(node, topic):
    """A virtual host that is not there or not allowed is the destination's trouble."""
    assert await refused(RabbitMQMessageBus(node.url_of("semel", "semel", "nowhere")), topic)


async def test_nobody_there(topic):
    """A broker that does not run is the destination's trouble; attempts are spaced out."""
    bus = RabbitMQMessageBus("amqp://127.0.0.1:1")
    assert "reached" in await refused(bus, topic)


async def test_access_refused(node, topic):
    """Without the permission to write, messages wait; the other topics of the batch pass."""
    node.control("add_user", "reader", "pw")
    node.control("set_permissions", "reader", "^$", f"^{topic}-open$", ".*")
    async with RabbitMQMessageBus(node.url) as owner:
        for name in (topic, f"{topic}-open"):
            await (await owner.subscribe(name, group="group")).close()
    async with RabbitMQMessageBus(node.url_of("reader", "pw"), declare=False) as bus:
        batch = [message(topic), message(f"{topic}-open"), message(topic)]
        results = await bus.publish_many(batch)
        assert ["destination", None, "destination"] == kinds(results)
        assert "ACCESS_REFUSED" in str(results[0])
    async with RabbitMQMessageBus(node.url_of("reader", "pw")) as bus:
        assert ["destination"] == kinds(await bus.publish_many([message(f"{topic}-new")]))


async def test_deleted_exchange(node, topic):
    """An exchange that disappears takes no messages with it; subscribing brings it back."""
    async with RabbitMQMessageBus(node.url) as bus:
        async with await read(bus, topic) as reader:
            await bus.publish(message(topic))
            await reader.messages(1)
        node.control("eval", f'rabbit_exchange:delete({name(topic)}, false, <<"test">>).')
        assert {"destination"} == set(kinds(await bus.publish_many(keyed(topic, 10))))
        assert {"destination"} == set(kinds(await bus.publish_many(keyed(topic, 10))))
        async with await read(bus, topic) as reader:
            await bus.publish(message(topic, event_id="later"))
            assert ["later"] == ids(await reader.messages(1))


def name(topic):
    return f'rabbit_misc:r(<<"/">>, exchange, <<"{topic}">>)'


async def test_too_large(node, topic):
    """The message that the broker finds too large is refused for good, and it alone."""
    node.control("eval", "application:set_env(rabbit, max_message_size, 100000).")
    try:
        async with RabbitMQMessageBus(node.url) as bus, await read(bus, topic) as reader:
            large = message(topic, key="k1", body=b"x" * 100_001)
            batch = [*keyed(topic, 2), large, *keyed(topic, 2)]
            results = await bus.publish_many(batch)
            assert results[2].kind == "permanent"
            assert {None, "unknown", "permanent"} >= set(kinds(results))
            assert results[4] is results[2]  # of its key
            rest = [m for m, error in zip(batch, results, strict=True) if error and m is not large]
            assert not any(await bus.publish_many(rest))
            small = [m for m in batch if m is not large]
            assert set(ids(small)) == {
                m.event_id
                for m in await collect(reader, lambda: [m for m in batch if m is not large])
            }
            # From now on it does not even go on its way, and costs nobody the channel.
            assert [None, "permanent"] == kinds(await bus.publish_many([message(topic), large]))
    finally:
        node.control("eval", "application:set_env(rabbit, max_message_size, 134217728).")


# Alarms


@pytest.mark.parametrize(
    ("raise_alarm", "end_alarm"),
    [
        (("set_vm_memory_high_watermark", "0"), ("set_vm_memory_high_watermark", "0.4")),
        (("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "50MB")),
    ],
    ids=["memory", "disk"],
)
async def test_alarm(node, topic, raise_alarm, end_alarm):
    """While the broker is short of memory or disk, messages wait; consuming goes on."""
    async with RabbitMQMessageBus(node.url) as bus, await read(bus, topic) as reader:
        first, second = message(topic), message(topic)
        await bus.publish(first)
        (held,) = await reader.take()
        try:
            node.control(*raise_alarm)
            async with asyncio.timeout(10):
                assert {"unknown"} == set(kinds(await bus.publish_many([second])))
            with pytest.raises(BusError, match="memory or disk"):
                await bus.publish_many([second])
            with pytest.raises(BusError, match="memory or disk"):
                await bus.ping()
            with pytest.raises(PublishError) as caught:
                await bus.publish(second)
            assert caught.value.kind == "destination"
            assert await reader.subscription.lag() == 1
            await held.ack()
            assert await reader.subscription.lag() == 0
        finally:
            node.control(*end_alarm)
        await publish_all(bus, [second])
        await bus.ping()
        assert second.event_id in ids(await collect(reader, lambda: [second]))


# Losses


async def test_killed_broker(node, topic):
    """A broker that is killed and restarted loses nothing that it confirmed, nor any order."""
    sent, seen = [], set()
    under_way, restarted, last = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def publish():
        left = 10
        while left:
            left -= restarted.is_set()
            batch = keyed(topic, 50, keys=10, start=len(sent))
            sent.extend(batch)
            if not left:
                last.set()
            await publish_all(bus, batch, seen=seen)
            if len(sent) == 500:
                under_way.set()

    async with RabbitMQMessageBus(node.url) as bus, await read(bus, topic) as reader:
        publishing = asyncio.create_task(publish())
        reading = asyncio.create_task(collect(reader, lambda: last.is_set() and sent))
        await under_way.wait()
        await asyncio.to_thread(node.services, "kill")
        started = await asyncio.to_thread(node.services, "start")
        assert 0 == started.returncode, started.stderr
        restarted.set()
        await publishing
        found = await reading
        assert reader.subscription.is_connected()
    assert by_key(sent) == by_key(first_occurrences(found))
    assert {None, "unknown", "destination"} >= seen
    assert len(seen) > 1
    print(f"killed broker: {len(sent)} sent, {len(found)} delivered, outcomes {seen}")


async def test_cut_in_mid_batch(node, topic):
    """A connection that breaks in mid-batch leaves outcomes unknown, never falsely confirmed."""
    sent = keyed(topic, 600)
    async with (
        Proxy.before(node.url) as proxy,
        RabbitMQMessageBus(proxy.url) as bus,
        RabbitMQMessageBus(node.url) as other,
        await read(other, topic) as reader,
    ):
        await bus.publish(message(topic, event_id="warm up"))
        proxy.cut_after(50_000)
        results = kinds(await bus.publish_many(sent))
        assert "unknown" in results
        assert {None, "unknown", "destination"} >= set(results)
        confirmed = [m for m, kind in zip(sent, results, strict=True) if kind is None]
        rest = [m for m, kind in zip(sent, results, strict=True) if kind is not None]
        await publish_all(bus, rest)
        found = [m for m in await collect(reader, lambda: sent) if m.event_id != "warm up"]
    assert set(ids(confirmed)) <= set(ids(found))
    assert by_key(sent) == by_key(first_occurrences(found))


async def test_silent_network(node, topic):
    """When confirms stop, the outcome is unknown after a while, and a new connection is made."""
    async with (
        Proxy.before(node.url) as proxy,
        RabbitMQMessageBus(proxy.url, confirm_seconds=0.6, connect_seconds=1) as bus,
    ):
        await (await bus.subscribe(topic, group="group")).close()
        await bus.publish(message(topic))
        connections = proxy.accepted
        proxy.blackhole = True
        assert {"unknown"} == set(kinds(await bus.publish_many(keyed(topic, 3))))
        with pytest.raises(BusError):
            await bus.publish_many(keyed(topic, 3))
        proxy.blackhole = False
        await publish_all(bus, keyed(topic, 3))
        assert proxy.accepted > connections


async def test_cancelled_publishing(node, topic):
    """A caller that gives up leaves the channel in order for the next."""
    async with Proxy.before(node.url) as proxy, RabbitMQMessageBus(proxy.url) as bus:
        await (await bus.subscribe(topic, group="group")).close()
        await bus.publish(message(topic))
        proxy.blackhole = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await bus.publish_many(keyed(topic, 3))
        proxy.blackhole = False
        assert [None] * 3 == await bus.publish_many(keyed(topic, 3))


async def test_consumer_comes_back(node, topic):
    """A consumer whose connection breaks says so, reconnects, and gets again what it held."""
    async with (
        RabbitMQMessageBus(node.url) as bus,
        Proxy.before(node.url) as proxy,
        RabbitMQMessageBus(proxy.url) as consuming,
        await read(consuming, topic) as reader,
    ):
        await bus.publish_many(keyed(topic, 3, keys=1))
        held = await reader.take(3)
        await held[0].ack()
        await reader.subscription._acks.flush()
        assert await reader.subscription.lag() == 2  # a round trip: the ack has arrived
        proxy.refuse = True
        proxy.cut()
        async with asyncio.timeout(10):
            while reader.subscription.is_connected():
                await asyncio.sleep(0.01)
        with pytest.raises(BusError):
            await reader.subscription.lag()
        proxy.refuse = False
        again = await reader.take(2)
        assert [d.wire.headers["message_id"] for d in held[1:]] == [
            d.wire.headers["message_id"] for d in again
        ]
        assert [2, 2] == [d.attempt for d in again]
        with pytest.raises(BusError, match="went back"):
            await held[1].ack()
        for delivery in again:
            await delivery.ack()
        assert await reader.subscription.lag() == 0


HOLDER = """
import asyncio, sys
from semel.transports.rabbitmq import RabbitMQMessageBus

async def main():
    async with RabbitMQMessageBus(sys.argv[1]) as bus:
        subscription = await bus.subscribe(sys.argv[2], group="group")
        print("ready", flush=True)
        count = 0
        async for delivery in subscription:
            count += 1
            if count == 1:
                await delivery.ack()
            if count == 3:
                print("holding", flush=True)

asyncio.run(main())
"""


async def test_killed_consumer(node, topic):
    """What a killed process had not acked goes to the next member, in order."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, node.url, topic),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    sent = keyed(topic, 4, keys=1)
    async with asyncio.timeout(30), RabbitMQMessageBus(node.url) as bus:
        assert await process.stdout.readline() == b"ready\n"
        async with await read(bus, topic) as reader:
            await bus.publish_many(sent)
            assert await process.stdout.readline() == b"holding\n"
            assert await reader.silent(0.1)
            process.kill()
            await process.wait()
            assert ids(sent[1:]) == ids(await reader.messages(3))


async def test_lent_robust_connection_reconnects(node, topic):
    """A robust connection of the application that comes back is used again."""
    import aio_pika

    async with Proxy.before(node.url) as proxy:
        assert urlsplit(proxy.url).port == proxy.port
        connection = await aio_pika.connect_robust(proxy.url, reconnect_interval=0.1)
        async with RabbitMQMessageBus(connection) as bus, await read(bus, topic) as reader:
            await bus.publish(message(topic, event_id="1"))
            assert ["1"] == ids(await reader.messages(1))
            proxy.cut()
            second = message(topic)
            await publish_all(bus, [second])
            assert second.event_id in ids(await collect(reader, lambda: [second]))
        await connection.close()
