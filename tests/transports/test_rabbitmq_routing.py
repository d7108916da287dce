"""RabbitMQ: which queue a message reaches, whose topology that is, and names and settings."""

import asyncio
from uuid import uuid4

import pytest

from semel.errors import BusError, ConfigurationError, InvalidMessageError
from semel.testing.contracts.harness import by_key, first_occurrences, ids, message
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.transports.rabbitmq_topology import queue_name
from tests.transports.rabbitmq_tools import (  # noqa: F401  some are fixtures
    a_bus,
    a_topic,
    an_admin,
    everything,
    forget,
    keyed,
    kinds,
    read,
)

pytestmark = pytest.mark.rabbitmq


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


async def test_a_group_called_dead(bus, topic, admin):
    """It gets the messages of its topic; the group that it sounds like keeps its dead letters."""
    other = f"{topic}.group"
    async with await read(bus, topic) as reader, await read(bus, other, group="dead") as dead:
        await bus.publish_many([message(topic, event_id="a"), message(other, event_id="b")])
        assert ["a"] == ids(await reader.messages(1))
        assert ["b"] == ids(await dead.messages(1))
        channel = await admin.channel()
        letters = await channel.declare_queue(f"{other}.dead", passive=True)
        assert 0 == letters.declaration_result.message_count
    for queue in (f"{other}.+64ead", f"{other}.+64ead.dead"):
        await channel.queue_delete(queue)
    await channel.exchange_delete(other)


@pytest.mark.parametrize("group", ["b.c", "ä", "a(b%c+d", "a b"])
async def test_odd_groups(bus, topic, admin, group):
    """A group may be called as it likes: what the name of a queue cannot have is escaped."""
    async with await read(bus, topic, group=group) as reader:
        await bus.publish(message(topic, event_id="a"))
        assert ["a"] == ids(await reader.messages(1))
    channel = await admin.channel()
    for queue in (queue_name(topic, group), f"{queue_name(topic, group)}.dead"):
        await channel.queue_delete(queue)


async def test_no_queue_is_named_like_dead_letters(service, topic):
    """Names that the user makes are refused, unless the queues are the user's, too."""
    options = {"queue": lambda topic, _: f"{topic}.dead"}
    async with RabbitMQMessageBus(service("rabbitmq"), **options) as bus:
        with pytest.raises(ConfigurationError, match="dead letters"):
            await bus.subscribe(topic, group="group")
    async with RabbitMQMessageBus(service("rabbitmq"), queue=lambda *_: "ä") as bus:
        with pytest.raises(ConfigurationError, match="a queue's name has"):
            await bus.subscribe(topic, group="group")
    async with RabbitMQMessageBus(service("rabbitmq"), dead_letter_exchange=None, **options) as bus:
        await (await bus.subscribe(f"{topic}.group", group="group")).close()


async def test_bad_names(bus):
    """Names that RabbitMQ would refuse are refused before anything is sent."""
    for topic in ("ä" * 200, "amq.topic", "ä", "a(b"):
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
        ({"exchange": "ä"}, "name of an exchange"),
        ({"dead_letter_exchange": "a(b"}, "name of an exchange"),
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
