"""Names are data on their way through SQL, topics and headers, whatever they contain."""

from __future__ import annotations

import asyncio
import json
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from semel import Hub, MessageEnvelope, SqlAlchemyStorage
from semel.errors import InvalidMessageError
from semel.inbox import ConsumerInbox
from semel.operations import InboxFilter, OutboxFilter
from semel.states import IdempotencyKey, OutboxStatus
from semel.testing.reader import Reader
from semel.transports.base import BaseMessageBus
from semel.transports.kafka import KafkaMessageBus
from semel.transports.memory import InMemoryMessageBus
from semel.transports.nats import NatsMessageBus
from semel.transports.pulsar import PulsarMessageBus
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.transports.rabbitmq_topology import is_name, queue_name
from semel.transports.redis import RedisMessageBus
from tests.scenarios.relaying import config, each_database
from tests.services import Database, service_url

HOSTILE = (
    "x'; DROP TABLE outbox; --",
    'x"; DELETE FROM inbox; --',
    "1) OR 1=1 /*",
    "%s %(topic)s %%",
    ":tenant_id :1 $1 ?",
    '{a,NULL,"b"}\\\' \\\\',
    "a\\",
    "${x} {{x}} {0}",
    "`outbox` [x] 日本",
)


@each_database
async def test_sec07_hostile_values_are_values(database: Database) -> None:
    """From add to delivery, search, repair and cleanup: they come back as they went in."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        bus = InMemoryMessageBus()
        hub = Hub("shop", storage=storage, bus=bus, config=config())
        async with hub.running(consumers=False):
            for name in HOSTILE:
                async with hub.unit_of_work(tenant_id=name) as uow:
                    await uow.outbox.add(
                        name,
                        {name: name},
                        key=name,
                        event_type=name,
                        event_id=name,
                        aggregate_type="t",
                        aggregate_id=name,
                        metadata={"x": name, "correlation_id": name},
                    )
                    await uow.commit()
            await hub.drain()
            for name in HOSTILE:
                await look_for(storage, name)
            await storage.outbox.cleanup(older_than=timedelta(0), tenant_id=HOSTILE[0])
            rest = await storage.outbox.search()

    assert sorted(HOSTILE) == sorted(bus.published_ids())
    assert set(HOSTILE) - {HOSTILE[0]} == {row.id for row in rest}


async def look_for(storage: SqlAlchemyStorage, name: str) -> None:
    """Every question that has a name in it finds this one, and only this one."""
    for criteria in (
        {"topic": name},
        {"event_type": name},
        {"key": name},
        {"tenant_id": name},
        {"aggregate_type": "t", "aggregate_id": name},
    ):
        (row,) = await storage.outbox.search(OutboxFilter(**criteria))
        assert (name, {name: name}, OutboxStatus.SENT) == (row.id, row.payload, row.status)
        assert name == row.event_metadata["x"]
    assert 0 == await storage.outbox.requeue([name], actor=name)
    await storage.outbox.pause(topic=name, reason=name, actor=name)
    assert [name] == [pause.topic for pause in await storage.outbox.pauses()]
    await storage.outbox.resume(topic=name, actor=name)
    inbox = ConsumerInbox(storage, consumer_name=name)
    for _ in range(2):
        await inbox.process_idempotent(name, name, name, {name: name}, lambda _: None)
    (received,) = await storage.inbox.search(InboxFilter(consumer_name=name))
    assert name == received.message_id
    key = IdempotencyKey(
        tenant_id=name, principal=name, method="POST", route=name, key_hash="0", key_prefix="k"
    )
    hour = timedelta(hours=1)
    await storage.idempotency.claim(key, fingerprint="f", lease=hour, keep=hour)
    assert name in [row.principal for row in await storage.idempotency.search()]


@each_database
@pytest.mark.parametrize("span", ["1 day'; DROP TABLE outbox; --", "1", None])
async def test_sec07_a_span_of_time_is_no_text(database: Database, span: Any) -> None:
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        for store in (storage.outbox, storage.inbox):
            with pytest.raises((TypeError, AttributeError)):
                await store.cleanup(older_than=span)
        assert [] == await storage.outbox.search()


BUSES: dict[str, Any] = {
    "memory": InMemoryMessageBus,
    "kafka": lambda: KafkaMessageBus("kafka://127.0.0.1:1"),
    "rabbitmq": lambda: RabbitMQMessageBus("amqp://127.0.0.1:1/"),
    "rabbitmq-shared": lambda: RabbitMQMessageBus(
        "amqp://127.0.0.1:1/", exchange="events", exchange_type="topic"
    ),
    "nats": lambda: NatsMessageBus("nats://127.0.0.1:1"),
    "redis": lambda: RedisMessageBus("redis://127.0.0.1:1"),
    "pulsar": lambda: PulsarMessageBus("pulsar://127.0.0.1:1"),
}
#: What each broker would take as more than a letter of a name.
SPECIAL = {
    "kafka": set(string.printable) - set(string.ascii_letters + string.digits + "._-"),
    "nats": set("*> \t"),
}
odd = st.text(st.sampled_from("ab.-_*>#/ $\r\n\t\x00\x7f\ud800é日") | st.characters(), max_size=300)


@pytest.fixture(scope="module")
def buses() -> dict[str, BaseMessageBus]:
    """None of them connects before it is used."""

    async def make() -> dict[str, BaseMessageBus]:
        return {name: make() for name, make in BUSES.items()}

    return asyncio.run(make())


@given(topic=odd)
def test_sec08_topics_mean_nothing_but_themselves(
    buses: dict[str, BaseMessageBus], topic: str
) -> None:
    for name, bus in buses.items():
        try:
            bus.check_topic(topic)
        except InvalidMessageError:
            continue
        assert 0 < len(topic) <= 255
        assert not any(ord(letter) < 32 or ord(letter) == 127 for letter in topic)
        topic.encode()
        assert not set(topic) & SPECIAL.get(name, set()), name
        parts = topic.split(".")
        if name == "nats":
            assert "" not in parts
            assert not topic.startswith("$")
        if name == "rabbitmq-shared":
            assert not {"*", "#"} & set(parts)


@pytest.mark.parametrize("topic", ["#", "*", "orders.*", "#.dead", "a.#.b"])
def test_sec08_a_shared_exchange_takes_no_patterns(
    buses: dict[str, BaseMessageBus], topic: str
) -> None:
    """A queue is bound by the name of its topic: as a pattern it would get messages of others."""
    with pytest.raises(InvalidMessageError, match="wildcards"):
        buses["rabbitmq-shared"].check_topic(topic)
    if "*" not in topic:  # which no exchange of its own is called
        buses["rabbitmq"].check_topic(topic)


names = st.lists(st.sampled_from([*"ab.+2E-ä(", ".dead", "dead"]), min_size=1, max_size=8).map(
    "".join
)


@example(one=("a.b", "dead"), two=("a", "b"))
@given(one=st.tuples(names, names), two=st.tuples(names, names))
def test_sec08_no_group_gets_the_queue_of_another(
    one: tuple[str, str], two: tuple[str, str]
) -> None:
    """`a.b` and `c` are not `a` and `b.c`; a group `dead` does not get dead letters."""
    assert (one == two) is (queue_name(*one) == queue_name(*two))
    assert queue_name(*one) != f"{queue_name(*two)}.dead"
    assert is_name(queue_name(*one))


@pytest.mark.nats
async def test_sec09_a_row_cannot_smuggle_headers() -> None:
    """A row that plain SQL wrote was not checked; in a protocol of lines it stays one value."""
    topic = f"smuggle-{datetime.now(UTC).timestamp():.0f}"
    fields = dict(MessageEnvelope(topic=topic, payload={}).__dict__) | {"body": b"{}"}
    rows = [
        fields | {"event_id": "a\r\nX-Evil: 1"},
        fields | {"event_id": "b", "content_type": "application/json\r\nX-Evil: 1"},
        fields | {"event_id": "c", "metadata": {"traceparent": "x\r\nX-Evil: 1", "y": "\r\nz"}},
        fields | {"event_id": "d", "metadata": {"y\r\nX-Evil: 1": "z"}},
        fields | {"event_id": "e", "event_type": "t\r\nX-Evil: 1"},
    ]
    async with NatsMessageBus(service_url("nats"), stream="smuggle") as bus:
        subscription = await bus.subscribe(topic, group="g")
        results = await bus.publish_many([MessageEnvelope.restore(row) for row in rows])
        sent = [row for row, error in zip(rows, results, strict=True) if error is None]
        async with Reader(subscription, patience_seconds=60) as reader:
            received = await reader.take(len(sent))

    assert sent
    for delivery in received:
        assert "X-Evil" not in delivery.wire.headers
        assert not any("\n" in value for value in delivery.wire.headers.values())


@given(name=st.text(max_size=140), value=st.text(max_size=60))
def test_sec09_metadata_can_travel_or_is_refused(name: str, value: str) -> None:
    try:
        message = MessageEnvelope(topic="t", payload=1, metadata={name: value})
    except InvalidMessageError:
        return
    assert set(name) <= set(string.ascii_letters + string.digits + "_.-")
    assert 1 <= len(name) <= 128
    assert not set("\r\n\x00") & set(value)
    assert value == json.loads(json.dumps(dict(message.metadata)))[name]
