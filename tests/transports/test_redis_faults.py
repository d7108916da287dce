"""Redis in trouble: a server of its own is killed, cut off, filled and locked."""

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semel.errors import BusError, PublishError
from semel.testing.contracts.harness import by_key, ids, message
from semel.testing.reader import Reader
from semel.transports.redis import RedisMessageBus
from semel.wire import decode
from tests.proxy import Proxy
from tests.transports.own_servers import (
    OwnConsumer,
    OwnServer,
    keyed,
    publish_until_confirmed,
    read_all,
)

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
async def server(service, tmp_path):
    service("redis")  # where Redis is not wanted, this is skipped too
    async with OwnServer("redis-server", tmp_path) as server:
        yield server


@pytest.fixture
def url(server):
    return f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture
async def admin(url):
    async with Redis.from_url(url) as admin:
        yield admin


async def refused(bus) -> str:
    """Publish two messages of a key, which fail with one error; return its kind."""
    first, second = await bus.publish_many(keyed(2, keys=1))
    assert second is first
    return first.kind


async def test_killed_while_publishing_and_consuming(server, url):
    """A server that dies in the middle loses nothing, and every key stays in order."""
    sent = keyed(600)
    async with RedisMessageBus(url, claim_after=3, timeout_seconds=5) as bus:
        subscription = await bus.subscribe("orders", group="group")
        async with Reader(subscription, patience_seconds=30) as reader:
            consuming = asyncio.create_task(read_all(reader, 600))
            await publish_until_confirmed(bus, sent[:200])
            publishing = asyncio.create_task(publish_until_confirmed(bus, sent[200:]))
            await asyncio.sleep(0)
            server.kill()
            async with asyncio.timeout(10):
                while subscription.is_connected():
                    await asyncio.sleep(0.01)
            with pytest.raises(BusError):
                await bus.ping()
            await server.start()
            kinds = set(await publishing)
            received = await consuming
            async with asyncio.timeout(10):
                while await subscription.lag():
                    await asyncio.sleep(0.05)
    assert by_key(sent) == by_key(received)
    assert kinds
    assert kinds <= {"destination", "unknown"}


async def test_cut_in_mid_batch(url):
    """A batch whose connection breaks is unknown as a whole, and nothing is lost."""
    sent = keyed(300, keys=100)
    async with Proxy.before(url) as proxy, RedisMessageBus(proxy.url) as bus:
        await bus.partitions("orders")
        proxy.cut_after(40_000)
        kinds = {error and error.kind for error in await bus.publish_many(sent)}
        assert {"unknown"} == kinds
        await publish_until_confirmed(bus, sent)
        async with Reader(await bus.subscribe("orders", group="group")) as reader:
            assert by_key(sent) == by_key(await read_all(reader, 300))


async def test_silence(url):
    """A server that says nothing leaves the outcome unknown."""
    async with Proxy.before(url) as proxy, RedisMessageBus(proxy.url, timeout_seconds=0.5) as bus:
        await bus.partitions("orders")
        proxy.blackhole = True
        assert await refused(bus) == "unknown"
        proxy.blackhole = False


async def test_connection_cut_while_consuming(url):
    """A subscription survives the loss of its connections; an ack that got lost is repeated."""
    async with Proxy.before(url) as proxy, RedisMessageBus(proxy.url, claim_after=3) as bus:
        await bus.publish_many(keyed(20, keys=1))
        async with Reader(await bus.subscribe("orders", group="group")) as reader:
            (first,) = await reader.take()
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(BusError, match="not take the ack yet"):
                await first.ack()
            proxy.refuse = False
            assert [str(n) for n in range(1, 20)] == ids(await read_all(reader, 19))
            async with asyncio.timeout(10):
                while await reader.subscription.lag():
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("repeats", [0, 3])
async def test_answer_lost_while_reading(url, admin, repeats):
    """What Redis delivered and nobody received comes again, before what follows it."""
    async with (
        RedisMessageBus(url) as outside,
        Proxy.before(url) as proxy,
        Redis.from_url(proxy.url, retry=Retry(NoBackoff(), repeats)) as client,
        RedisMessageBus(client, claim_after=3) as bus,
        Reader(await bus.subscribe("orders", group="group")) as reader,
    ):
        messages = keyed(20, keys=1)
        await outside.publish_many(messages[:1])
        assert ["0"] == ids(await reader.messages(1))  # it has found out what was there before
        proxy.latency = 0.3
        await outside.publish_many(messages[1:10])
        async with asyncio.timeout(5):
            while await delivered(outside, admin) < 9:
                pass  # asking takes its time
        proxy.cut()
        proxy.latency = 0.0
        await outside.publish_many(messages[10:])
        assert [str(n) for n in range(1, 20)] == ids(await read_all(reader, 19))


async def delivered(bus, admin) -> int:
    """Return how many messages the group has, and not acked."""
    streams = [bus.stream("orders", n) for n in range(await bus.partitions("orders"))]
    answers = [await admin.xpending(stream, "group") for stream in streams]
    return sum(answer["pending"] for answer in answers)


async def test_killed_consumer(url):
    """What a killed process held comes to another member, before what follows it."""
    async with RedisMessageBus(url, claim_after=1) as bus:
        await bus.publish_many(keyed(3, keys=1))
        make_bus = (
            "from semel.transports.redis import RedisMessageBus; "
            f"bus = RedisMessageBus({url!r}, claim_after=1)"
        )
        async with OwnConsumer(make_bus, "orders") as taken:
            assert taken == "0"
        async with Reader(await bus.subscribe("orders", group="group")) as reader:
            (first,) = await reader.take()
            assert decode(first.wire).event_id == "0"
            assert first.attempt >= 2
            await first.ack()
            assert ["1", "2"] == ids(await reader.messages(2))


async def test_out_of_memory(url, admin):
    """Without memory messages wait, and go when there is some."""
    async with RedisMessageBus(url) as bus:
        await bus.publish_many(keyed(1))
        await admin.config_set("maxmemory", 1)
        assert await refused(bus) == "destination"
        await admin.config_set("maxmemory", 0)
        assert not any(await bus.publish_many(keyed(2, keys=1)))


async def test_out_of_memory_from_the_start(url, admin):
    """A topic that was never used waits too."""
    await admin.config_set("maxmemory", 1)
    async with RedisMessageBus(url) as bus:
        assert await refused(bus) == "destination"


async def test_read_only_replica(url, admin):
    """A server that became a replica takes nothing, and messages wait."""
    async with RedisMessageBus(url) as bus:
        await bus.publish_many(keyed(1))
        await admin.replicaof("127.0.0.1", "1")
        assert await refused(bus) == "destination"
        await admin.replicaof("NO", "ONE")
        assert not any(await bus.publish_many(keyed(2, keys=1)))


async def test_too_few_replicas(url, admin):
    """With fewer replicas than the server asks for, messages wait."""
    async with RedisMessageBus(url) as bus:
        await admin.config_set("min-replicas-to-write", 1)
        assert await refused(bus) == "destination"
        await admin.config_set("min-replicas-to-write", 0)


async def test_waiting_for_replicas(url):
    """A bus that waits for a replica does not confirm what none has."""
    async with RedisMessageBus(url, wait_replicas=1, timeout_seconds=1) as bus:
        assert await refused(bus) == "unknown"


async def test_key_of_another_kind(url, admin):
    """A stream's key that holds something else stops the partition, not the others."""
    async with RedisMessageBus(url, partitions=2) as bus:
        await bus.partitions("orders")
        await admin.set(bus.stream("orders", 0), "x")
        results = await bus.publish_many(keyed(10))
        assert {None, "destination"} == {error and error.kind for error in results}
        assert await admin.xlen(bus.stream("orders", 1)) == results.count(None)


@pytest.mark.parametrize("login", ["", ":wrong-one@", "nobody:wrong-one@"])
async def test_wrong_password(service, tmp_path, login):
    """Wrong credentials are the destination's trouble, and are not in the text."""
    service("redis")
    async with OwnServer("redis-server", tmp_path, "--requirepass", "right") as server:
        bus = RedisMessageBus(f"redis://{login}127.0.0.1:{server.port}")
        with pytest.raises(PublishError) as caught:
            await bus.publish(message("orders"))
        assert caught.value.kind == "destination"
        assert "wrong-one" not in str(caught.value)
        async with RedisMessageBus(f"redis://:right@127.0.0.1:{server.port}") as right:
            await right.publish(message("orders"))


async def test_no_right_to_write(url, admin):
    """A user without the right to write is the destination's trouble."""
    await admin.execute_command("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@read", "+ping")
    async with RedisMessageBus(url.replace("//", "//reader:x@")) as bus:
        assert await refused(bus) == "destination"


async def test_nobody_there():
    """A server that is not there is the destination's trouble, said soon."""
    bus = RedisMessageBus("redis://127.0.0.1:1")
    async with asyncio.timeout(5):
        with pytest.raises(PublishError) as caught:
            await bus.publish(message("orders"))
    assert caught.value.kind == "destination"
