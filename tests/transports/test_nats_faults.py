"""NATS in trouble: a server of its own is killed, cut off and locked."""

import asyncio

import nats
import pytest

from semel.errors import BusError, PublishError
from semel.testing.contracts.harness import by_key, first_occurrences, ids, message
from semel.testing.reader import Reader
from semel.transports.nats import NatsMessageBus
from semel.wire import decode
from tests.proxy import Proxy
from tests.transports.own_servers import (
    OwnConsumer,
    OwnServer,
    keyed,
    publish_until_confirmed,
    read_all,
)

pytestmark = [pytest.mark.nats, pytest.mark.slow]


@pytest.fixture
async def server(service, tmp_path):
    service("nats")  # where NATS is not wanted, this is skipped too
    async with OwnServer("nats-server", tmp_path) as server:
        yield server


@pytest.fixture
def url(server):
    return f"nats://127.0.0.1:{server.port}"


async def test_killed_while_publishing_and_consuming(server, url):
    """A server that dies in the middle loses nothing, and every key stays in order."""
    sent = keyed(600)
    async with NatsMessageBus(url, ack_seconds=2, timeout_seconds=5) as bus:
        subscription = await bus.subscribe("orders", group="group")
        async with Reader(subscription, patience_seconds=30) as reader:
            consuming = asyncio.create_task(read_all(reader, 600))
            first = await publish_until_confirmed(bus, sent[:200])
            publishing = asyncio.create_task(publish_until_confirmed(bus, sent[200:]))
            await asyncio.sleep(0)
            server.kill()
            async with asyncio.timeout(10):
                while subscription.is_connected():
                    await asyncio.sleep(0.01)
            with pytest.raises(BusError):
                await bus.ping()
            await server.start()
            kinds = set(first) | set(await publishing)
            received = await consuming
    assert by_key(sent) == by_key(first_occurrences(received))
    assert kinds
    assert kinds <= {"destination", "unknown"}


async def test_cut_in_mid_batch(url):
    """Of a batch whose connection breaks, what was not confirmed says so, and nothing is lost."""
    sent = keyed(300, keys=100)
    async with Proxy.before(url) as proxy, NatsMessageBus(proxy.url, timeout_seconds=5) as bus:
        proxy.cut_after(40_000)
        results = await bus.publish_many(sent)
        kinds = {error and error.kind for error in results}
        assert "unknown" in kinds
        assert kinds <= {None, "unknown", "destination"}
        await publish_until_confirmed(
            bus, [m for m, error in zip(sent, results, strict=True) if error is not None]
        )
        async with Reader(await bus.subscribe("orders", group="group")) as reader:
            assert by_key(sent) == by_key(await read_all(reader, 300))


async def test_silence(url):
    """A server that says nothing leaves the outcome unknown, and what was not sent unsent."""
    async with Proxy.before(url) as proxy, NatsMessageBus(proxy.url, timeout_seconds=0.5) as bus:
        proxy.blackhole = True
        first, second = await bus.publish_many(keyed(2, keys=1))
        assert first.kind == "unknown"
        assert second is first
        proxy.blackhole = False


async def test_connection_cut_while_consuming(url):
    """A subscription survives the loss of its connection; an ack that got lost is repeated."""
    async with Proxy.before(url) as proxy, NatsMessageBus(proxy.url, ack_seconds=3) as bus:
        await bus.publish_many(keyed(20, keys=1))
        async with Reader(await bus.subscribe("orders", group="group")) as reader:
            (first,) = await reader.take()
            proxy.cut()
            async with asyncio.timeout(5):
                while reader.subscription.is_connected():
                    await asyncio.sleep(0.005)
            with pytest.raises(BusError, match="repeated"):
                await first.ack()
            received = await read_all(reader, 19)
            assert [str(n) for n in range(1, 20)] == ids(received)


async def test_killed_consumer(url):
    """What a killed process held comes to another member, before what follows it."""
    sent = keyed(3, keys=1)
    async with NatsMessageBus(url, ack_seconds=1) as bus:
        await bus.publish_many(sent)
        make_bus = (
            "from semel.transports.nats import NatsMessageBus; "
            f"bus = NatsMessageBus({url!r}, ack_seconds=1)"
        )
        async with OwnConsumer(make_bus, "orders") as taken:
            assert taken == "0"
        async with Reader(await bus.subscribe("orders", group="group")) as reader:
            (first,) = await reader.take()
            assert decode(first.wire).event_id == "0"
            assert first.attempt >= 2
            await first.ack()
            assert ["1", "2"] == ids(await reader.messages(2))


async def test_nobody_there():
    """A server that is not there is the destination's trouble, said soon."""
    bus = NatsMessageBus("nats://127.0.0.1:1")
    async with asyncio.timeout(5):
        with pytest.raises(PublishError) as caught:
            await bus.publish(message("orders"))
    assert caught.value.kind == "destination"


async def test_wrong_password(service, tmp_path):
    """Wrong credentials are the destination's trouble, and are not in the text."""
    service("nats")
    async with OwnServer("nats-server", tmp_path, "--user", "semel", "--pass", "right") as server:
        bus = NatsMessageBus(f"nats://semel:wrong-one@127.0.0.1:{server.port}")
        with pytest.raises(PublishError) as caught:
            await bus.publish(message("orders"))
        assert caught.value.kind == "destination"
        assert "wrong-one" not in str(caught.value)
        async with NatsMessageBus(f"nats://semel:right@127.0.0.1:{server.port}") as right:
            await right.publish(message("orders"))


async def test_no_right_to_publish(service, tmp_path):
    """A subject that the user may not publish to is the destination's trouble, without a wait."""
    service("nats")
    config = tmp_path / "nats.conf"
    config.write_text(
        'authorization { users: [{ user: "semel", password: "x", permissions: '
        '{ publish: { deny: ["semel.secret.>"] } } }] }'
    )
    async with (
        OwnServer("nats-server", tmp_path, "-c", str(config)) as server,
        NatsMessageBus(f"nats://semel:x@127.0.0.1:{server.port}") as bus,
    ):
        async with asyncio.timeout(5):
            denied, allowed = await bus.publish_many([message("secret"), message("orders")])
        assert denied.kind == "destination"
        assert allowed is None


async def test_connection_ended_for_good(url):
    """A connection that the client gave up is made anew."""
    async with NatsMessageBus(url) as bus:
        await bus._client.close()
        await bus.publish(message("orders", event_id="1"))
        client = await nats.connect(url)
        assert (await client.jetstream().stream_info("semel")).state.messages == 1
        await client.close()
