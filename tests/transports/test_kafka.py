"""Kafka: the contract of all buses on a real broker, and what only this bus promises."""

import asyncio
import json
import os
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from semel.errors import ConfigurationError, InvalidMessageError
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import by_key, ids, message
from semel.transports import bus_from_url
from semel.transports.kafka import KafkaMessageBus
from tests.transports.kafka_tools import (  # noqa: F401  some are fixtures
    a_bus,
    a_topic,
    named,
    read,
    their_addresses,
)

pytestmark = pytest.mark.kafka


class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True

    @pytest.fixture
    async def bus(self, service):
        async with KafkaMessageBus(service("kafka")) as bus:
            yield bus

    async def prepare(self, bus, topic):
        await bus.declare(topic, partitions=4, config={"max.message.bytes": "200000"})

    async def break_key(self, bus, topic, key):
        """The topic takes less than the client: the broker refuses it, not we."""
        return message(topic, key=key, body=b"x" * 300_000, content_type="text/plain")


# Settings


@pytest.mark.parametrize(
    ("servers", "options", "text"),
    [
        ("", {}, "host:port"),
        ("kafka://", {}, "host:port"),
        ("http://host:9092", {}, "kafka://"),
        ("kafka://user:s3cret@host:9092", {}, "dictionary of settings"),
        ("h:1", {"timeout_seconds": 0}, "timeout_seconds"),
        ("h:1", {"mode": "xml"}, "binary, structured, raw"),
        ("h:1", {"producer_options": {"acks": "s3cret"}}, "decides about acks"),
        ("h:1", {"consumer_options": {"group.id": "s3cret"}}, "decides about group.id"),
        ({"bootstrap.servers": "h:1", "enable.auto.commit": True}, {}, "enable.auto.commit"),
    ],
)
def test_bad_options(servers, options, text):
    """Wrong settings are refused when the bus is made, without their values."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        KafkaMessageBus(servers, **options)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"), [("socket.timeout.ms", "s3cret"), ("no.such.thing", "s3cret")]
)
async def test_refused_by_the_client(setting, value):
    """What librdkafka refuses is named, never quoted."""
    bus = KafkaMessageBus({"bootstrap.servers": "127.0.0.1:1", setting: value})
    with pytest.raises(ConfigurationError, match=setting) as caught:
        await bus.start()
    assert "s3cret" not in str(caught.value)


async def test_ways_to_name_the_servers(service, servers):
    """A URL, host and port, and a dictionary reach the same broker."""
    for bus in (
        bus_from_url(service("kafka")),
        KafkaMessageBus(servers),
        KafkaMessageBus({"bootstrap.servers": servers, "security.protocol": "plaintext"}),
    ):
        async with bus:
            await bus.ping()


async def test_bad_topics(bus):
    """A name that Kafka would refuse is refused before it is sent."""
    for name in ("a b", "ä", "..", "x" * 250):
        with pytest.raises(InvalidMessageError):
            await bus.subscribe(name, group="g")
        (result,) = await bus.publish_many([message(name)])
        assert result.kind == "permanent"


async def test_create_topics(service):
    """On request, and only then, a topic is made on first use."""
    name = f"test-{uuid4().hex}"
    async with KafkaMessageBus(service("kafka"), create_topics=True) as bus:
        await bus.publish(message(name, event_id="1"))
        async with await read(bus, name) as reader:
            assert ["1"] == ids(await reader.messages(1))
        async with await read(bus, f"{name}-2") as reader:
            await bus.publish(message(f"{name}-2", event_id="2"))
            assert ["2"] == ids(await reader.messages(1))


async def test_declare_twice(bus, topic):
    """A topic that exists is left as it is."""
    await bus.declare(topic, partitions=3)
    metadata = await asyncio.to_thread(bus.admin().list_topics, topic)
    assert len(metadata.topics[topic].partitions) == 1


def test_refuses_another_event_loop():
    """A bus that is in use in one event loop says so in another one."""
    bus = KafkaMessageBus("127.0.0.1:1", timeout_seconds=0.1)
    first = asyncio.new_event_loop()
    first.run_until_complete(bus.start())
    with pytest.raises(ConfigurationError, match="another event loop"):
        asyncio.run(bus.publish(message("t")))
    first.run_until_complete(bus.close())
    first.close()


async def test_refuses_another_process(bus, topic, monkeypatch):
    """After a fork the client's threads are gone: the bus says so instead of hanging."""
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ConfigurationError, match="after the fork"):
        await bus.publish(message(topic))
    monkeypatch.undo()


# Publishing


async def test_plain_client_reads(bus, topic, servers):
    """A consumer without this library finds the payload, the key, CloudEvents and the id."""
    sent = message(topic, payload={"n": 1}, key="Schlüssel", event_type="OrderPlaced")
    await bus.publish(sent)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, 0)])
    received = await asyncio.to_thread(consumer.poll, 20)
    consumer.close()
    headers = {name: value.decode() for name, value in received.headers()}
    assert json.loads(received.value()) == {"n": 1}
    assert received.key().decode() == "Schlüssel"
    assert sent.event_id == headers["message_id"] == headers["ce_id"]
    assert headers["ce_specversion"] == "1.0"
    assert headers["ce_type"] == "OrderPlaced"
    assert headers["content-type"] == "application/json"


async def test_same_partition_as_java(bus, servers):
    """Keys go to the partitions where Java's default partitioner puts them."""
    topic = f"test-{uuid4().hex}"
    await bus.declare(topic, partitions=7)
    keys = [f"order-{n}" for n in range(20)] + ["ä", "a"]
    await bus.publish_many([message(topic, key=key) for key in keys])
    consumer = Consumer({"bootstrap.servers": servers, "group.id": uuid4().hex})
    consumer.assign([TopicPartition(topic, n, 0) for n in range(7)])
    found = {}
    while len(found) < len(keys):
        received = await asyncio.to_thread(consumer.poll, 20)
        found[received.key()] = received.partition()
    consumer.close()
    assert {k.encode(): (murmur2(k.encode()) & 0x7FFFFFFF) % 7 for k in keys} == found


def murmur2(data: bytes) -> int:
    """Kafka's hash, from its specification."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


async def test_full_queue_waits(service, topic):
    """More messages than the client's queue holds are sent, one after the other."""
    options = {"queue.buffering.max.messages": 50}
    async with KafkaMessageBus(service("kafka"), producer_options=options) as bus:
        sent = [message(topic, key="k", payload=n) for n in range(700)]
        assert not any(await bus.publish_many(sent))
        async with await read(bus, topic) as reader:
            assert by_key(sent) == by_key(await reader.messages(700))


async def test_cancelled_batch(service, topic):
    """Closing after a cancelled call still flushes what is in flight."""
    async with KafkaMessageBus(service("kafka"), producer_options={"linger.ms": 300}) as bus:
        await bus.publish(message(topic))
        call = asyncio.create_task(bus.publish_many(named(topic, 3)))
        await asyncio.sleep(0.05)  # less than it lingers
        call.cancel()
    async with KafkaMessageBus(service("kafka")) as bus, await read(bus, topic) as reader:
        assert ids(named(topic, 3)) == ids(await reader.messages(4))[1:]


async def test_idle_bus_does_not_poll(bus, topic):
    """The client is served while something is in flight, and not beyond."""
    await bus.publish_many(named(topic, 3))
    await asyncio.sleep(0.02)
    assert bus._client._poller is None
