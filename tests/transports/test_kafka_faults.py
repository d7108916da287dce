"""What Kafka's troubles do to a batch, a subscription and an effect."""

import asyncio
import re
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from semel.errors import BusError
from semel.testing.contracts.harness import by_key, ids, message
from semel.transports.kafka import KafkaMessageBus
from semel.transports.kafka_producer import ERRORS, OTHER_ERRORS
from tests.proxy import KafkaProxy
from tests.transports.kafka_mock import MockCluster
from tests.transports.kafka_tools import a_bus, keyed, new_topic, read  # noqa: F401  a fixture

ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def mock():
    with MockCluster() as cluster:
        cluster.create("orders")
        yield cluster


def kinds(results) -> list[str | None]:
    return [None if result is None else result.kind for result in results]


# The table


def test_table_in_the_docs():
    """The page shows every row of the table, with the same class."""
    page = (ROOT / "docs/transports/kafka.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == ERRORS
    assert f"| everything else | {OTHER_ERRORS} |" in page


def test_table_names_real_errors():
    """A misspelt name would never match."""
    assert not [name for name in ERRORS if not hasattr(KafkaError, name)]


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"])
@pytest.mark.parametrize("count", [1, 50])
async def test_refused_by_the_cluster(mock, name, count):
    """Missing rights are the destination's trouble, and every message says so."""
    async with KafkaMessageBus(mock.servers) as bus:
        await bus.publish(message("orders"))
        mock.answer(getattr(KafkaError, name))
        results = await bus.publish_many(keyed("orders", count))
        assert [ERRORS[name]] * count == kinds(results)
        assert name in str(results[0])
        assert all(result is results[0] for result in results)
        await bus.publish(message("orders"))


@pytest.mark.parametrize(
    "name",
    [
        "NOT_ENOUGH_REPLICAS",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_PRODUCER_ID",
    ],
)
async def test_passing_trouble(mock, name):
    """What the client can sit out is no failure."""
    async with KafkaMessageBus(mock.servers) as bus:
        await bus.publish(message("orders"))
        mock.answer(getattr(KafkaError, name))
        assert not any(await bus.publish_many(keyed("orders", 20)))


@pytest.mark.parametrize("name", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH"])
async def test_fatal_error(mock, name):
    """A producer that lost its place is replaced; what it had sent may have arrived."""
    async with KafkaMessageBus(mock.servers) as bus:
        await bus.publish(message("orders"))
        first = bus._client
        mock.answer(getattr(KafkaError, name))
        assert ["unknown"] * 20 == kinds(await bus.publish_many(keyed("orders", 20)))
        assert not any(await bus.publish_many(keyed("orders", 20)))
        assert bus._client is not first


async def test_fatal_error_spares_other_batches(mock):
    """Batches beside the one that broke the client are sent by the next client."""
    for topic in ("second", "third"):
        mock.create(topic)
    async with KafkaMessageBus(mock.servers, producer_options={"linger.ms": 50}) as bus:
        await bus.publish(message("orders"))
        mock.answer(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        results = await asyncio.gather(
            *(bus.publish_many(keyed(topic, 20)) for topic in ("orders", "second", "third"))
        )
        assert sum(any(result) for result in results) == 1


async def test_no_topic_by_accident(mock):
    """A topic that does not exist is not created by publishing to it, nor by subscribing."""
    async with KafkaMessageBus(
        mock.servers, producer_options={"topic.metadata.propagation.max.ms": 500}
    ) as bus:
        subscription = await bus.subscribe("typo", group="g")
        for _ in range(2):
            (result,) = await bus.publish_many([message("typo")])
            assert result.kind == "destination"
        await subscription.close()


# One message


@pytest.mark.kafka
async def test_unknown_topic(service):
    """Messages for a missing topic wait for it; those for others in the batch are sent."""
    options = {"topic.metadata.propagation.max.ms": 1000}
    async with KafkaMessageBus(service("kafka"), producer_options=options) as bus:
        topic = await new_topic(bus)
        results = await bus.publish_many([message("no-such-topic"), message(topic)])
        assert ["destination", None] == kinds(results)
        assert "UNKNOWN_TOPIC_OR_PART" in str(results[0])


@pytest.mark.kafka
async def test_too_large_for_the_client(bus):
    """A message beyond the client's limit is refused at once, with what follows of its key."""
    topic = await new_topic(bus)
    first = bus._client
    big = message(topic, key="k0", body=b"x" * 1_100_000)
    before, after = keyed(topic, 2)
    results = await bus.publish_many([before, big, after, message(topic, key="other")])
    assert [None, "permanent", "permanent", None] == kinds(results)
    assert bus._client is first


@pytest.mark.kafka
async def test_too_large_for_the_topic(bus):
    """The broker refuses a whole set of messages; only the one to blame fails."""
    topic = await new_topic(bus, max_message_bytes="20000")
    sent = [message(topic, key=f"k{n % 10}", body=b"x" * 500, event_id=f"{n}") for n in range(300)]
    sent[105] = message(topic, key="k5", body=b"x" * 30_000, event_id="105")
    results = await bus.publish_many(sent)
    failed = [f"{n}" for n in range(105, 300, 10)]
    assert failed == [m.event_id for m, result in zip(sent, results, strict=True) if result]
    assert {"permanent"} == {result.kind for result in results if result}
    async with await read(bus, topic) as reader:
        received = ids(await reader.messages(280))
    by_tail = defaultdict(list)
    for event_id in received:
        by_tail[event_id[-1]].append(int(event_id))
    assert all(numbers == sorted(numbers) for numbers in by_tail.values())


@pytest.mark.kafka
async def test_compacted_topic_without_key(bus):
    """A message without a key is refused by a compacted topic, and those with one are not."""
    topic = await new_topic(bus, cleanup_policy="compact")
    results = await bus.publish_many([message(topic, key="a"), message(topic), *keyed(topic, 2)])
    assert [None, "permanent", None, None] == kinds(results)
    assert "INVALID_RECORD" in str(results[1])


# The connection


async def test_unreachable_broker():
    """Nothing is confirmed, nothing is refused: the destination is to blame."""
    async with KafkaMessageBus(NOWHERE, timeout_seconds=0.5) as bus:
        results = await bus.publish_many([message("orders"), *keyed("orders", 3)])
        assert ["destination"] * 4 == kinds(results)
        assert "Connection refused" in str(results[0])
        with pytest.raises(BusError, match="does not answer"):
            await bus.ping()


@pytest.mark.kafka
async def test_connection_cut_in_mid_batch(service, bus):
    """The client sends again what was cut off: nothing lost, nothing twice, order kept."""
    topic = await new_topic(bus, partitions=4)
    sent = keyed(topic, 2000, keys=20)
    proxy = KafkaProxy.before(service("kafka"))
    async with proxy, KafkaMessageBus(proxy.url) as shaky:
        await shaky.publish_many([message(topic, key="first", payload=-1)])
        before = proxy.accepted
        proxy.cut_after(100_000)
        assert not any(await shaky.publish_many(sent))
        assert proxy.accepted > before
    async with await read(bus, topic) as reader:
        received = await reader.messages(2001)
        assert await reader.silent(0.3)
    assert by_key(sent) == {k: v for k, v in by_key(received).items() if k != "first"}


@pytest.mark.kafka
async def test_silent_broker(service, bus):
    """A broker that stops answering leaves outcomes unknown, none confirmed; order is kept."""
    topic = await new_topic(bus)
    sent = keyed(topic, 300)
    proxy = KafkaProxy.before(service("kafka"))
    async with proxy, KafkaMessageBus(proxy.url, timeout_seconds=2) as shaky:
        await shaky.publish_many([message(topic, key="k0", payload=-1)])
        proxy.blackhole = True
        results = await shaky.publish_many(sent)
        assert {"unknown", "destination"} >= set(kinds(results))
        assert all(result is results[0] for result in results)
        proxy.blackhole = False
        assert not any(await shaky.publish_many(sent))
    async with await read(bus, topic) as reader:
        received: list[int] = []
        while received.count(299) < 1:
            received += [m.payload for m in await reader.messages(1)]
    assert list(range(-1, 300)) == sorted(set(received))
    assert list(dict.fromkeys(received)) == sorted(set(received))
