"""Pulsar: the contract of all buses on a real broker, and what only this bus promises."""

import asyncio
import json
import os
import time
from statistics import median
from threading import Event
from urllib.error import URLError
from urllib.request import Request, urlopen
from uuid import uuid4

import pulsar
import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, InvalidMessageError
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import by_key, ids, message
from semel.testing.reader import Reader
from semel.transports.pulsar import PulsarMessageBus

TOO_LARGE = 5 * 1024 * 1024 + 1

broker = pytest.mark.pulsar


@pytest.fixture
async def bus(service):
    async with PulsarMessageBus(service("pulsar")) as bus:
        yield bus


@pytest.fixture
def topic() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
def plain(service):
    """A client as anybody has it, who never heard of semel."""
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(service("pulsar"), logger=quiet, operation_timeout_seconds=20)
    yield client
    client.close()


async def read(bus: PulsarMessageBus, topic: str, group: str = "group", **options) -> Reader:
    subscription = await bus.subscribe(topic, group=group, **options)
    return Reader(subscription, patience_seconds=20)


@broker
class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True
    reports_lag = False

    @pytest.fixture
    async def bus(self, service):
        async with PulsarMessageBus(service("pulsar")) as bus:
            yield bus

    async def break_key(self, bus, topic, key):
        return message(topic, key=key, body=b"x" * TOO_LARGE, content_type="text/plain")

    async def test_unacked_comes_again(self, bus, topic):
        """What was not acked goes back, in order; a batch goes back as a whole.

        Brokers acknowledge whole batches unless acknowledgmentAtBatchIndexLevelEnabled is set,
        so what was acked before comes again too. The inbox knows it.
        """
        sent = [message(topic, key="k", payload=n) for n in range(3)]
        async with await self.read(bus, topic) as reader:
            await bus.publish_many(sent)
            (first,) = await reader.take()
            await first.ack()
            await reader.take()
        async with await self.read(bus, topic) as reader:
            again = ids(await reader.messages(2))
            if again[0] == sent[0].event_id:
                again = [*again[1:], *ids(await reader.messages(1))]
            assert ids(sent[1:]) == again


@broker
async def test_unbatched_acks_stand_alone(service, topic):
    """Without batches an acked message does not come again with its neighbours."""
    sent = [message(topic, key="k", payload=n) for n in range(3)]
    options = {"batching_enabled": False}
    async with PulsarMessageBus(service("pulsar"), producer_options=options) as bus:
        async with await read(bus, topic) as reader:
            await bus.publish_many(sent)
            (first,) = await reader.take()
            await first.ack()
            await reader.take()
        async with await read(bus, topic) as reader:
            assert ids(sent[1:]) == ids(await reader.messages(2))
            assert await reader.silent(0.3)


# Other clients


@broker
async def test_plain_client_reads(bus, plain, topic):
    """A plain consumer finds the payload, CloudEvents properties and the key."""
    sent = MessageEnvelope(
        topic=topic, payload={"n": 1}, event_type="OrderPlaced", key="Schlüssel 1"
    )
    consumer = await asyncio.to_thread(plain.subscribe, topic, "other")
    await bus.publish(sent)
    received = await asyncio.to_thread(consumer.receive, 20_000)
    consumer.acknowledge(received)

    assert {"n": 1} == json.loads(received.data())
    assert "Schlüssel 1" == received.partition_key()
    properties = received.properties()
    assert sent.event_id == properties["ce_id"] == properties["message_id"]
    assert "OrderPlaced" == properties["ce_type"]
    assert "1.0" == properties["ce_specversion"]
    assert "application/json" == properties["content-type"]


@broker
async def test_foreign_messages(bus, plain, topic):
    """Bare JSON with a message_id is consumed, with its key; a null value is null."""
    producer = await asyncio.to_thread(plain.create_producer, topic)
    await asyncio.to_thread(
        producer.send, b'{"n":7}', properties={"message_id": "m-1"}, partition_key="k"
    )
    await asyncio.to_thread(producer.send, None, properties={"message_id": "m-2"})
    async with await read(bus, topic) as reader:
        bare, empty = await reader.messages(2)
    assert ("m-1", {"n": 7}, "k", topic) == (bare.event_id, bare.payload, bare.key, bare.topic)
    assert ("m-2", None) == (empty.event_id, empty.payload)


@broker
async def test_foreign_client_is_left_open(plain, topic):
    """A client that was passed in is used, and still works after the bus is closed."""
    async with PulsarMessageBus(plain) as bus:
        await bus.publish(message(topic))
    assert [f"persistent://public/default/{topic}"] == plain.get_topic_partitions(topic)


@broker
async def test_full_topic_name(bus, plain):
    """A topic in another namespace is named in full, in both directions."""
    name = f"persistent://public/default/test-{uuid4().hex}"
    sent = message(name)
    async with await read(bus, name) as reader:
        await bus.publish(sent)
        (received,) = await reader.messages(1)
    assert (sent.event_id, name) == (received.event_id, received.topic)


# Order


@broker
async def test_partitioned_topic_keeps_order(bus, service, topic):
    """Keys stay in order on a topic of several partitions, and members share it."""
    _create_partitions(topic, 3)
    sent = [message(topic, key=f"k{n % 10}", payload=n) for n in range(300)]
    async with await read(bus, topic) as reader:
        assert not any(await bus.publish_many(sent))
        assert by_key(sent) == by_key(await reader.messages(300))


@broker
async def test_nack_holds_its_key(bus, topic):
    """What follows of a key waits for a nacked message; other keys go on."""
    sent = [message(topic, key=k, event_id=f"{k}-{n}") for k in ("a", "b") for n in range(2)]
    async with await read(bus, topic) as reader:
        await bus.publish_many(sent)
        held = {d.wire.headers["message_id"]: d for d in await reader.take(4)}
        await held["a-0"].nack(delay=0.2)
        await held["a-1"].nack()
        await held["b-0"].ack()
        await held["b-1"].ack()
        assert await reader.silent(0.1)
        again = await reader.take(2)
        assert ["a-0", "a-1"] == [d.wire.headers["message_id"] for d in again]
        assert [2, 2] == [d.attempt for d in again]


@broker
async def test_settled_once(bus, topic):
    """A second ack is an error, and so is one after the subscription closed."""
    async with await read(bus, topic) as reader:
        await bus.publish_many([message(topic), message(topic)])
        first, second = await reader.take(2)
        await first.ack()
        with pytest.raises(BusError, match="before"):
            await first.nack()
    with pytest.raises(BusError, match="went back"):
        await second.ack()


@broker
async def test_large_message_is_a_barrier(bus, topic):
    """A refused message of a key holds back its followers, one that is only large does not."""
    large = message(topic, key="k", body=b"x" * 1_000_000, content_type="text/plain")
    refused = message(topic, key="k", body=b"x" * TOO_LARGE, content_type="text/plain")
    small = [message(topic, key="k", payload=n) for n in range(3)]
    async with await read(bus, topic) as reader:
        results = await bus.publish_many([small[0], large, small[1], refused, small[2]])
        assert [None, None, None, "permanent", "permanent"] == [r and r.kind for r in results]
        expected = ids([small[0], large, small[1]])
        assert expected == ids(await reader.messages(3))
        assert await reader.silent(0.3)


# Settings


@pytest.mark.parametrize(
    ("server", "options", "text"),
    [
        ("http://host", {}, "pulsar://"),
        ("pulsar://", {}, "pulsar://"),
        ("pulsar://user:s3cret@host:6650", {}, "authentication"),
        (object(), {}, "pulsar.Client"),
        ("pulsar://host", {"tenant": "a/b"}, "tenant"),
        ("pulsar://host", {"timeout_seconds": 0}, "timeout_seconds"),
        ("pulsar://host", {"producer_options": {"producer_name": "x"}}, "producer_name"),
        ("pulsar://host", {"consumer_options": {"consumer_type": "x"}}, "consumer_type"),
    ],
)
def test_bad_settings(server, options, text):
    """Wrong settings are refused when the bus is made, without repeating a password."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        PulsarMessageBus(server, **options)
    assert "s3cret" not in str(caught.value)


@broker
@pytest.mark.parametrize("side", ["client_options", "producer_options", "consumer_options"])
async def test_unknown_option(service, topic, side):
    """An option that pulsar-client does not know is a mistake of ours, not of the broker."""
    bus = PulsarMessageBus(service("pulsar"), **{side: {"no_such_option": 1}})
    sending = side == "producer_options"
    with pytest.raises(ConfigurationError, match="option"):
        await (bus.publish_many([message(topic)]) if sending else bus.subscribe(topic, group="g"))
    await bus.close()


@pytest.mark.parametrize("name", ["a/b", "orders-partition-3", "", "persistent://a/b"])
def test_bad_topic(name):
    """A name that Pulsar would refuse, or take for a partition, raises at once."""
    with pytest.raises(InvalidMessageError):
        PulsarMessageBus("pulsar://localhost:6650").check_topic(name)


# Speed


@broker
@pytest.mark.slow
async def test_speed(bus, plain, capsys):
    """publish_many takes at most the work of a bare producer divided by 0.7.

    Processor time decides, the threads of the client included: it is what limits both, and it
    does not depend on who else uses this machine, as the rates that are printed do.
    """
    count = 2_000
    topics = [f"speed-{uuid4().hex}" for _ in range(2)]
    producer = await asyncio.to_thread(plain.create_producer, topics[0], **bus._for_producer)
    await bus.publish(message(topics[1], key="k"))
    clocks = (time.perf_counter, time.process_time)
    bare, ours = [], []
    for _ in range(9):
        sent = [message(topics[1], key=f"k{n % 100}", payload={"n": n}) for n in range(count)]
        wires = [bus.encode(m) for m in sent]
        began = [clock() for clock in clocks]
        await asyncio.to_thread(_send_bare, producer, wires)
        between = [clock() for clock in clocks]
        assert not any(await bus.publish_many(sent))
        ended = [clock() for clock in clocks]
        bare.append([b - a for a, b in zip(began, between, strict=True)])
        ours.append([b - a for a, b in zip(between, ended, strict=True)])
    (wall, cpu), (our_wall, our_cpu) = (
        [median(column) for column in zip(*rounds, strict=True)] for rounds in (bare, ours)
    )
    with capsys.disabled():
        print(
            f"\npulsar: bare {count / wall:,.0f}/s, publish_many {count / our_wall:,.0f}/s, "
            f"ratio {wall / our_wall:.2f}; of processor time {cpu / our_cpu:.2f}"
        )
    assert cpu / our_cpu >= 0.7


def _send_bare(producer, wires) -> None:
    done, answers = Event(), []

    def answered(result, _):
        answers.append(result)
        if len(answers) == len(wires):
            done.set()

    for wire in wires:
        producer.send_async(wire.body, answered, properties=wire.headers, partition_key=wire.key)
    assert done.wait(60)
    assert {pulsar.Result.Ok} == set(answers)


def _create_partitions(topic: str, count: int) -> None:
    """Ask the broker's web service, as an operator does; skip where it is elsewhere."""
    port = os.environ.get("SEMEL_TEST_PULSAR_WEB_PORT", "21080")
    url = f"http://127.0.0.1:{port}/admin/v2/persistent/public/default/{topic}/partitions"
    request = Request(url, str(count).encode(), {"Content-Type": "application/json"}, method="PUT")
    try:
        urlopen(request, timeout=20).close()
    except URLError as error:
        pytest.skip(f"no admin service of Pulsar ({error.reason})")
