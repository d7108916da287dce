"""RabbitMQ: the contract of all buses on a real server, and what only it promises."""

import asyncio
from contextlib import suppress
from uuid import uuid4

import aio_pika
import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from semel.errors import BusError, ConfigurationError, InvalidMessageError, WireError
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import by_key, first_occurrences, ids, message
from semel.testing.reader import Reader
from semel.transports import amqp
from semel.transports.amqp_single import SingleChannel
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.wire import decode

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
async def admin(service):
    """A plain aio-pika connection, beside the bus."""
    connection = await aio_pika.connect(service("rabbitmq"))
    yield connection
    await connection.close()


@pytest.fixture
async def topic(admin):
    """A name whose exchanges and queues are gone afterwards."""
    name = f"contract-{uuid4().hex}"
    yield name
    await forget(admin, name, f"{name}-other")


async def forget(admin, *topics):
    channel = await admin.channel()
    for name in topics:
        for group in ("group", "first", "second"):
            for queue in (f"{name}.{group}", f"{name}.{group}.dead"):
                await channel.queue_delete(queue)
        await channel.exchange_delete(name)


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


@pytest.fixture
async def bus(service):
    async with RabbitMQMessageBus(service("rabbitmq")) as bus:
        yield bus


async def read(bus, topic, group="group", prefetch=100):
    return Reader(await bus.subscribe(topic, group=group, prefetch=prefetch))


def keyed(topic, count, key="k", **fields):
    return [
        message(topic, key=key, event_id=f"{key}-{n}", payload=n, **fields) for n in range(count)
    ]


async def everything(reader, wanted):
    """Read until each of the wanted ids has come."""
    found = []
    while wanted:
        found += await reader.messages(1)
        wanted.discard(found[-1].event_id)
    return found


def kinds(results):
    return [result and result.kind for result in results]


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


# Routing


async def test_no_queue_is_no_success(bus, topic):
    """A topic without a queue is in trouble; other topics of the batch are not."""
    other = f"{topic}-other"
    async with await read(bus, other) as reader:
        results = await bus.publish_many([message(topic), message(other), message(topic, key="k")])
        assert ["destination", None, "destination"] == kinds(results)
        assert topic in str(results[0])
        assert len(await reader.messages(1)) == 1
        await (await bus.subscribe(topic, group="group")).close()
        assert [None] == await bus.publish_many([message(topic)])


@pytest.mark.parametrize(
    ("choice", "kind"), [("permanent", "permanent"), ("transient", "transient"), ("accept", None)]
)
async def test_unroutable_on_request(service, topic, choice, kind):
    """What an unroutable message means can be chosen."""
    async with RabbitMQMessageBus(service("rabbitmq"), unroutable=choice) as bus:
        assert [kind] == kinds(await bus.publish_many([message(topic)]))


async def test_unroutable_message_stops_its_key(service, topic):
    """Behind an unroutable message nothing of its key is sent, even on a route that works."""
    options = {"bindings": {topic: ["good"]}}
    async with (
        RabbitMQMessageBus(service("rabbitmq"), **options) as bus,
        await read(bus, topic) as reader,
    ):
        await bus.publish(message(topic, routing_key="good", key="warm up"))
        batch = [
            message(topic, routing_key="good", key="k", event_id="before"),
            message(topic, routing_key="bad", key="k", event_id="bad"),
            message(topic, routing_key="good", key="k", event_id="after"),
            message(topic, routing_key="good", key="other", event_id="other"),
        ]
        results = await bus.publish_many(batch)
        assert [None, "destination", "destination", None] == kinds(results)
        assert results[2] is results[1]
        assert ["before", "other"] == ids(await reader.messages(3))[1:]
        assert await reader.silent(0.2)


@pytest.fixture
async def full(topic, admin):
    """A queue of three messages that refuses more."""
    channel = await admin.channel()
    exchange = await channel.declare_exchange(topic, "topic", durable=True)
    limit = {"x-max-length": 3, "x-overflow": "reject-publish", "x-queue-type": "quorum"}
    queue = await channel.declare_queue(f"{topic}.group", durable=True, arguments=limit)
    await queue.bind(exchange, "#")


async def test_full_queue(service, topic, full):
    """What a full queue refuses may pass later; it is neither confirmed nor refused for good."""
    async with RabbitMQMessageBus(service("rabbitmq"), declare=False) as bus:
        async with asyncio.timeout(20):
            while not any(results := await bus.publish_many(keyed(topic, 50))):
                pass  # the limit of a quorum queue is not exact
        assert {None, "transient"} >= set(kinds(results))
        first = kinds(results).index("transient")
        assert {"transient"} == set(kinds(results)[first:])


async def test_strict_order(service, topic, full):
    """With strict_order no message of a key ever overtakes one that was refused."""
    options = {"declare": False, "strict_order": True}
    async with RabbitMQMessageBus(service("rabbitmq"), **options) as bus:
        waiting = keyed(topic, 60) + keyed(topic, 60, "other")
        expected, wanted = by_key(waiting), set(ids(waiting))

        async def publish():
            results = await bus.publish_many(waiting)
            return [m for m, error in zip(waiting, results, strict=True) if error]

        waiting = await publish()
        assert waiting
        async with await read(bus, topic, prefetch=2) as reader:
            received = asyncio.create_task(everything(reader, wanted))
            async with asyncio.timeout(30):
                while waiting:
                    waiting = await publish()
                found = await received
    assert expected == by_key(first_occurrences(found))


async def test_shared_direct_exchange(service, topic):
    """All topics may share an exchange; the topic is the routing key then."""
    name = f"{topic}-other"
    options = {"exchange": name, "exchange_type": "direct"}
    async with (
        RabbitMQMessageBus(service("rabbitmq"), **options) as bus,
        await read(bus, topic) as reader,
    ):
        results = await bus.publish_many([message(topic, event_id="1"), message("elsewhere")])
        assert [None, "destination"] == kinds(results)
        assert ["1"] == ids(await reader.messages(1))


async def test_existing_topology(service, topic, admin):
    """With declare=False exchanges and queues are used as they are."""
    channel = await admin.channel()
    exchange = await channel.declare_exchange(topic, "fanout")  # not durable: not ours
    queue = await channel.declare_queue(f"{topic}.group", auto_delete=False)
    await queue.bind(exchange)
    options = {"declare": False, "queue": lambda topic, _: f"{topic}.group"}
    async with RabbitMQMessageBus(service("rabbitmq"), **options) as bus:
        async with await read(bus, topic, group="whatever") as reader:
            await bus.publish(message(topic, event_id="1"))
            assert ["1"] == ids(await reader.messages(1))
        with pytest.raises(BusError, match="NOT_FOUND"):
            await bus.subscribe(f"{topic}-other", group="group")
        (result,) = await bus.publish_many([message(f"{topic}-other")])
        assert result.kind == "destination"
        assert "does not exist" in str(result)


async def test_default_exchange(service, topic, admin):
    """The broker's own exchanges work: the topic is the name of a queue."""
    await (await admin.channel()).declare_queue(f"{topic}.group")
    options = {"declare": False, "exchange": "", "queue": lambda topic, _: topic}
    async with (
        RabbitMQMessageBus(service("rabbitmq"), **options) as bus,
        await read(bus, f"{topic}.group") as reader,
    ):
        await bus.publish(message(f"{topic}.group", event_id="1"))
        assert ["1"] == ids(await reader.messages(1))


async def test_other_settings_are_explained(bus, service, topic):
    """A queue that exists with other settings is a matter of configuration."""
    await (await bus.subscribe(topic, group="group")).close()
    async with RabbitMQMessageBus(service("rabbitmq"), delivery_limit=7) as other:
        with pytest.raises(ConfigurationError, match="declare=False"):
            await other.subscribe(topic, group="group")


async def test_bad_names(bus):
    """Names that RabbitMQ would refuse are refused before anything is sent."""
    for topic in ("ä" * 200, "amq.topic"):
        (result,) = await bus.publish_many([message(topic)])
        assert result.kind == "permanent"
    with pytest.raises(InvalidMessageError, match="queue name"):
        await bus.subscribe("t" * 150, group="g" * 150)
    (result,) = await bus.publish_many([message("orders", routing_key="ä" * 200)])
    assert result.kind == "permanent"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue_type": "stream"}, "quorum"),
        ({"unroutable": "drop"}, "accept"),
        ({"window": 0}, "window"),
        ({"mode": "xml"}, "binary"),
    ],
)
def test_bad_options(options, text):
    """Wrong settings are refused when the bus is made."""
    with pytest.raises(ConfigurationError, match=text):
        RabbitMQMessageBus("amqp://localhost", **options)


async def test_bad_url():
    """A URL that makes no sense is a matter of configuration, and is not repeated."""
    bus = RabbitMQMessageBus("amqp://user:s3cret@host:notaport/")
    with pytest.raises(ConfigurationError, match="amqp://") as caught:
        await bus.start()
    assert "s3cret" not in str(caught.value)


async def test_many_topics_share_a_few_channels(service, admin, monkeypatch):
    """Channels of topics that are idle are closed when there are too many."""
    monkeypatch.setattr("semel.transports.rabbitmq._MAX_CHANNELS", 3)
    topics = [f"contract-{uuid4().hex}" for _ in range(6)]
    async with RabbitMQMessageBus(service("rabbitmq"), unroutable="accept") as bus:
        for topic in topics:
            assert [None] == await bus.publish_many([message(topic)])
        assert topics[-3:] == list(bus._channels)
        assert [None] == await bus.publish_many([message(topics[0])])
    await forget(admin, *topics)


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
