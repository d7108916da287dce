"""RabbitMQ: the contract of all buses on a real server, and what only it promises."""

import asyncio
from contextlib import suppress

import aio_pika
import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from semel.errors import BusError, WireError
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import ids, message
from semel.transports import amqp
from semel.transports.amqp_single import SingleChannel
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.wire import decode
from tests.transports.rabbitmq_tools import (  # noqa: F401  some are fixtures
    a_bus,
    a_topic,
    an_admin,
    keyed,
    read,
)

pytestmark = pytest.mark.rabbitmq


class TestContract(MessageBusContract):
    prefix = "cloudEvents_"
    parallel_members = False  # a single active consumer
    replays_to_new_groups = False  # a queue begins with its group
    survives_restart = True
    breaks_keys = True
    options = {"max_message_bytes": 1_000_000}  # noqa: RUF012

    @pytest.fixture
    async def bus(self, service):
        async with RabbitMQMessageBus(service("rabbitmq"), **self.options) as bus:
            yield bus

    @pytest.fixture
    async def topic(self, topic):
        return topic

    async def break_key(self, bus, topic, key):
        return message(topic, key=key, body=b"x" * 1_000_001)


class TestCompetingContract(TestContract):
    """Without a single active consumer members share, and a key has no order among them."""

    ordered = False
    parallel_members = True
    options = {"single_active_consumer": False, "max_message_bytes": 1_000_000}  # noqa: RUF012


class TestDocumentedApiContract(TestContract):
    """The same promises hold where aiormq lacks what batches need."""

    @pytest.fixture(autouse=True)
    def slow(self, monkeypatch):
        monkeypatch.setattr(amqp, "supports_batches", lambda _: False)

    async def test_is_slow(self, bus, topic):
        """The documented API is really in use."""
        await bus.publish_many([message(topic)])
        assert isinstance(bus._channels[topic], SingleChannel)


# Messages


async def test_plain_client_reads(bus, topic, admin):
    """A consumer without semel finds the CloudEvents headers and the AMQP properties."""
    await (await bus.subscribe(topic, group="group")).close()
    sent = message(topic, event_type="OrderPlaced", key="k", aggregate_id="42")
    await bus.publish(sent)
    queue = await (await admin.channel()).get_queue(f"{topic}.group")
    async with queue.iterator(timeout=10) as deliveries:
        received = await anext(deliveries)
        await received.ack()
    assert sent.event_id == received.message_id
    assert received.content_type == "application/json"
    assert received.delivery_mode == 2
    assert received.routing_key == "OrderPlaced"
    assert int(sent.occurred_at.timestamp()) == int(received.timestamp.timestamp())
    assert received.body == sent.body
    expected = {"specversion": "1.0", "id": sent.event_id, "type": "OrderPlaced", "subject": "42"}
    expected |= {"partitionkey": "k", "tenantid": "default", "source": "semel"}
    assert expected == {name: received.headers[f"cloudEvents_{name}"] for name in expected}


async def test_foreign_cloudevent(bus, topic, admin):
    """A CloudEvent of another producer is understood, with either separator."""
    async with await read(bus, topic) as reader:
        exchange = await (await admin.channel()).get_exchange(topic)
        headers = {"id": "e-1", "specversion": "1.0", "type": "Paid", "source": "/billing"}
        for mark in "_:":
            named = {f"cloudEvents{mark}{name}": value for name, value in headers.items()}
            named |= {f"cloudEvents{mark}partitionkey": "k"}
            await exchange.publish(aio_pika.Message(b"[1]", headers=named), "Paid")
        for received in await reader.messages(2):
            assert ("e-1", "Paid", "/billing") == (
                received.event_id,
                received.event_type,
                received.source,
            )
            assert received.order_key == "k"
            assert received.payload == [1]


async def test_foreign_plain_message(bus, topic, admin):
    """The AMQP properties message_id and type count where there is no CloudEvent."""
    async with await read(bus, topic) as reader:
        exchange = await (await admin.channel()).get_exchange(topic)
        plain = aio_pika.Message(
            b'{"n": 1}',
            message_id="e-2",
            type="Paid",
            correlation_id="c-1",
            headers={"count": 3, "yes": True, "nested": {"a": 1}, "bytes": bytearray(b"\xff")},
        )
        await exchange.publish(plain, "x")
        await publish_without_id(await admin.channel(), topic)
        (received,) = await reader.messages(1)
        assert ("e-2", "Paid") == (received.event_id, received.event_type)
        assert received.metadata["correlation_id"] == "c-1"
        (nameless,) = await reader.take()
        with pytest.raises(WireError, match="no id"):
            decode(nameless.wire)
        await nameless.ack()


async def publish_without_id(channel, exchange):
    """As other clients do; aio-pika gives every message an id."""
    underlay = await channel.get_underlay_channel()
    frames = [
        spec.Basic.Publish(exchange=exchange, routing_key="x"),
        ContentHeader(0, 5, spec.Basic.Properties()),
        ContentBody(b"no id"),
    ]
    await underlay.write_queue.put(ChannelFrame.marshall(underlay.number, frames))


@pytest.mark.parametrize("mode", ["structured", "raw"])
async def test_key_in_other_modes(service, topic, mode):
    """The key, which orders, arrives in every mode."""
    async with (
        RabbitMQMessageBus(service("rabbitmq"), modes={topic: mode}) as bus,
        await read(bus, topic) as reader,
    ):
        await bus.publish(message(topic, key="k"))
        (delivery,) = await reader.take()
        await delivery.ack()
    assert delivery.wire.key == "k"
    assert decode(delivery.wire).order_key == "k"


async def test_large_body(bus, topic):
    """A body of many frames arrives byte for byte."""
    sent = message(topic, body=bytes(range(256)) * 8192, content_type="application/x-bytes")
    async with await read(bus, topic) as reader:
        await bus.publish(sent)
        (received,) = await reader.messages(1)
    assert sent.body == received.body


async def test_long_id(bus, topic):
    """An id that is too long for the AMQP property arrives all the same."""
    sent = message(topic, event_id="ä" * 200)
    async with await read(bus, topic) as reader:
        await bus.publish(sent)
        assert [sent.event_id] == ids(await reader.messages(1))


# Consuming


async def test_dead_letters(service, topic, admin):
    """What comes back too often goes to the dead-letter queue, and the next one is delivered."""
    async with RabbitMQMessageBus(service("rabbitmq"), delivery_limit=2) as bus:
        await (await bus.subscribe(topic, group="group")).close()
        await bus.publish_many(keyed(topic, 1))
        attempts = []
        for _ in range(3):
            async with await read(bus, topic) as reader:
                attempts += [delivery.attempt for delivery in await reader.take()]
        assert [1, 2, 3] == attempts
        async with await read(bus, topic) as reader:
            await bus.publish_many(keyed(topic, 1, "next"))
            assert ["next-0"] == ids(await reader.messages(1))
    queue = await (await admin.channel()).get_queue(f"{topic}.group.dead")
    dead = await queue.get(timeout=5)
    assert dead.message_id == "k-0"
    assert "cloudEvents_id" in dead.headers
    await dead.ack()


async def test_nacks_return_to_their_place(bus, topic):
    """Messages nacked in any order come again in the order of the key, before what follows."""
    async with await read(bus, topic, prefetch=3) as reader:
        await bus.publish_many(keyed(topic, 4))
        held = await reader.take(3)
        for delivery in (held[2], held[0], held[1]):
            await delivery.nack(delay=0.05)
        assert await reader.silent(0.02)
        again = await reader.take(3)
        assert ["k-0", "k-1", "k-2"] == [d.wire.headers["message_id"] for d in again]
        assert [2, 2, 2] == [d.attempt for d in again]
        for delivery in again:
            await delivery.ack()
        assert ["k-3"] == ids(await reader.messages(1))


async def test_delayed_nack_holds_its_key(bus, topic):
    """What follows of a key waits for a nacked message; other keys go on."""
    async with await read(bus, topic, prefetch=10) as reader:
        await bus.publish_many(keyed(topic, 1))
        (first,) = await reader.take()
        await first.nack(delay=0.3)
        await bus.publish_many([*keyed(topic, 2)[1:], *keyed(topic, 1, "other")])
        assert ["other-0", "k-0", "k-1"] == ids(await reader.messages(3))


async def test_settled_once(bus, topic):
    """A second ack or nack is an error, also after the message came again."""
    async with await read(bus, topic) as reader:
        await bus.publish_many(keyed(topic, 1))
        (first,) = await reader.take()
        await first.nack()
        (second,) = await reader.take()
        with pytest.raises(BusError, match="before"):
            await first.ack()
        await second.ack()
        with pytest.raises(BusError, match="before"):
            await second.nack()
    with pytest.raises(BusError, match="went back"):
        await second.ack()


async def test_forgets_what_is_done(bus, topic):
    """A subscription keeps nothing of acked messages."""
    async with await read(bus, topic) as reader:
        await bus.publish_many([message(topic, key=f"k{n % 7}") for n in range(200)])
        await reader.messages(200)
        subscription = reader.subscription
        assert ({}, [], 0) == (subscription._lanes, subscription._ready, subscription._held)


async def test_lag_counts_until_acked(bus, topic):
    """What is prefetched but not acked still counts."""
    async with await read(bus, topic) as reader:
        await bus.publish_many(keyed(topic, 3))
        (first, *_) = await reader.take(3)
        assert await reader.subscription.lag() == 3
        await first.ack()
        assert await reader.subscription.lag() == 2


async def test_cancelled_by_the_broker(bus, topic, admin):
    """When somebody deletes the queue, it is declared again and consumed."""
    async with await read(bus, topic) as reader:
        await (await admin.channel()).queue_delete(f"{topic}.group")
        async with asyncio.timeout(10):
            while any(await bus.publish_many(keyed(topic, 1))):
                await asyncio.sleep(0.02)
        assert ["k-0"] == ids(await reader.messages(1))
        assert reader.subscription.is_connected()


async def test_channel_closed_by_the_broker(bus, topic):
    """A channel that the broker closes is replaced, and what was held comes again."""
    async with await read(bus, topic) as reader:
        await bus.publish_many(keyed(topic, 2))
        held = await reader.take(2)
        with suppress(Exception):
            await reader.subscription._channel.basic_ack(4711)  # PRECONDITION_FAILED
        again = await reader.take(2)
        assert ["k-0", "k-1"] == [d.wire.headers["message_id"] for d in again]
        assert [2, 2] == [d.attempt for d in again]
        with pytest.raises(BusError, match="went back"):
            await held[0].ack()
        for delivery in again:
            await delivery.ack()


# Lent connections


@pytest.mark.parametrize("connect", [aio_pika.connect, aio_pika.connect_robust])
async def test_lent_connection(service, topic, connect):
    """An aio-pika connection is used for everything, and stays open."""
    connection = await connect(service("rabbitmq"))
    async with RabbitMQMessageBus(connection) as bus, await read(bus, topic) as reader:
        await bus.publish(message(topic, event_id="1"))
        assert ["1"] == ids(await reader.messages(1))
    assert not connection.is_closed
    await (await connection.channel()).close()
    await connection.close()
    with pytest.raises(BusError, match="closed"):
        await bus.start()
