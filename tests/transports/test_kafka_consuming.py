"""Kafka: deliveries, acks, nacks, backpressure and messages of strangers."""

import asyncio
import json
import logging
import threading
from contextlib import suppress
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from semel.errors import BusError, WireError
from semel.testing.contracts.harness import ids, message
from semel.transports import kafka_consumer
from semel.transports.kafka import KafkaMessageBus
from semel.wire import decode
from tests.scenarios.relaying import eventually
from tests.transports.kafka_tools import (  # noqa: F401  some are fixtures
    a_bus,
    a_topic,
    keyed,
    named,
    new_topic,
    read,
    their_addresses,
)

pytestmark = pytest.mark.kafka


async def test_foreign_messages(bus, topic, servers):
    """CloudEvents and bare JSON of other producers are understood; without an id they are not."""
    ce = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/java", "ce_type": "OrderPlaced"}
    document = {"specversion": "1.0", "id": "2", "source": "/go", "type": "T", "data": {"n": 2}}
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b'{"n": 1}', b"k", headers={**ce, "content-type": "application/json"})
    structured = {"content-type": "application/cloudevents+json; charset=UTF-8"}
    producer.produce(topic, json.dumps(document), headers=structured)
    producer.produce(topic, b'{"n": 3}', headers=[("message_id", "3"), ("x", None), ("y", b"\xff")])
    producer.produce(topic, None, b"\xff", headers={"message_id": "4"})
    producer.produce(topic, b"{}")
    await asyncio.to_thread(producer.flush)
    async with await read(bus, topic) as reader:
        deliveries = await reader.take(5)
    events = [decode(delivery.wire) for delivery in deliveries[:4]]
    assert ["1", "2", "3", "4"] == ids(events)
    assert [{"n": 1}, {"n": 2}, {"n": 3}, None] == [event.payload for event in events]
    assert (events[0].order_key, events[0].source) == ("k", "/java")
    assert events[1].event_type == "T"
    with pytest.raises(WireError, match="no id"):
        decode(deliveries[4].wire)


async def test_commit_never_passes_an_unacked_message(bus, topic):
    """What was acked behind a message that was not comes again with it."""
    await bus.publish_many(named(topic, 5))
    async with await read(bus, topic) as reader:
        held = await reader.take(5)
        for delivery in (held[0], held[1], held[3], held[4]):
            await delivery.ack()
        await committed(bus, topic, 2)
    async with await read(bus, topic) as reader:
        assert ["k-2", "k-3", "k-4"] == ids(await reader.messages(3))
        await committed(bus, topic, 5)


async def committed(bus, topic: str, offset: int) -> None:
    """Return once the group has committed *offset*; before it is closed, therefore."""
    consumer = Consumer({**bus._common, "group.id": topic})
    try:
        async with asyncio.timeout(20):
            while True:
                (found,) = await asyncio.to_thread(consumer.committed, [TopicPartition(topic, 0)])
                if found.offset == offset:
                    return
    finally:
        consumer.close()


async def test_attempts_of_the_members_before(bus, topic):
    """What was handed out and not acked is no first delivery to the next member; the rest is."""
    await bus.publish_many(named(topic, 6))
    async with await read(bus, topic, prefetch=4) as reader:
        held = await reader.take(4)
        for delivery in held[:2]:
            await delivery.ack()
    for _ in range(2):  # a member that is given nothing forgets nothing
        await (await bus.subscribe(topic, group=topic)).close()
    async with await read(bus, topic) as reader:
        again = await reader.take(4)
        assert [("k-2", 2), ("k-3", 2), ("k-4", 1), ("k-5", 1)] == [
            (d.wire.headers["message_id"], d.attempt) for d in again
        ]
        for delivery in again:
            await delivery.ack()
    await bus.publish_many(named(topic, 1, "new"))
    async with await read(bus, topic) as reader:
        (fresh,) = await reader.take()
        assert ("new-0", 1) == (fresh.wire.headers["message_id"], fresh.attempt)


async def test_attempts_after_somebody_else_committed(bus, topic):
    """An offset that an operator has set, or another client, says nothing about deliveries."""
    await bus.publish_many(named(topic, 2))
    consumer = Consumer({**bus._common, "group.id": topic})
    place = TopicPartition(topic, 0, 1, "their own words")
    await asyncio.to_thread(consumer.commit, offsets=[place], asynchronous=False)
    consumer.close()
    async with await read(bus, topic) as reader:
        (delivery,) = await reader.take()
        assert ("k-1", 1) == (delivery.wire.headers["message_id"], delivery.attempt)


async def test_late_ack(bus, topic):
    """An ack after the delivery went back is an error, since the message comes again."""
    await bus.publish_many(named(topic, 1))
    async with await read(bus, topic) as reader:
        (delivery,) = await reader.take()
    with pytest.raises(BusError, match="comes again"):
        await delivery.ack()


async def test_settled_once(bus, topic):
    """A second ack or nack is an error, also after the message came again."""
    await bus.publish_many(named(topic, 1))
    async with await read(bus, topic) as reader:
        (first,) = await reader.take()
        await first.nack()
        (second,) = await reader.take()
        with pytest.raises(BusError, match="before"):
            await first.ack()
        await second.ack()
        with pytest.raises(BusError, match="before"):
            await second.nack()


async def test_delayed_nack_holds_its_key(bus, topic):
    """What follows of a key waits for a nacked message; other keys of the partition go on."""
    async with await read(bus, topic, prefetch=1) as reader:
        await bus.publish_many([*named(topic, 2), *named(topic, 1, "other")])
        (first,) = await reader.take()
        await first.nack(delay=0.5)
        assert ["other-0", "k-0", "k-1"] == ids(await reader.messages(3))


async def test_nacks_return_to_their_place(bus, topic):
    """Messages nacked in any order come again in the order of the key, before what is new."""
    async with await read(bus, topic, prefetch=3) as reader:
        await bus.publish_many(named(topic, 4))
        held = await reader.take(3)
        for number, delay in ((2, 0.2), (0, 0.05), (1, 0.0)):
            await held[number].nack(delay=delay)
        again = await reader.take(3)
        assert ["k-0", "k-1", "k-2"] == [d.wire.headers["message_id"] for d in again]
        assert [2, 2, 2] == [d.attempt for d in again]
        for delivery in again:
            await delivery.ack()
        assert ["k-3"] == ids(await reader.messages(1))


async def test_backpressure(bus, topic):
    """A consumer that does not ack makes the member pause, and all arrives once it goes on."""
    sent = named(topic, 500)
    await bus.publish_many(sent)
    async with await read(bus, topic, prefetch=10) as reader:
        fetcher = reader.subscription._fetcher
        held = await reader.take(10)
        await eventually(lambda: bool(fetcher._paused))
        assert fetcher._given <= 20
        for delivery in held:
            await delivery.ack()
        assert ids(sent[10:]) == ids(await reader.messages(490))


async def test_what_was_paused_when_it_left_is_read_when_it_comes_back(bus):
    """A member that is jammed gives a partition to another one, which leaves again."""
    topic = await new_topic(bus, partitions=2)
    sent = keyed(topic, 100, keys=20)
    await bus.publish_many(sent)
    async with await read(bus, topic, prefetch=10) as reader:
        held, fetcher = await reader.take(10), reader.subscription._fetcher
        await eventually(lambda: len(fetcher._paused) == 2)
        async with await read(bus, topic):
            await eventually(lambda: len(fetcher.partitions) == 1)
        await eventually(lambda: len(fetcher.partitions) == 2)
        found = set()
        for delivery in held:
            with suppress(BusError):  # the partition has left meanwhile: it comes again
                await delivery.ack()
                found.add(delivery.wire.headers["message_id"])
        while len(found) < len(sent):
            found.update(ids(await reader.messages(1)))


async def test_window_is_bounded(bus, topic, monkeypatch):
    """A message that is never acked stops its partition before too much would come again."""
    monkeypatch.setattr(kafka_consumer, "_MAX_WINDOW", 20)
    await bus.publish_many([message(topic, key=f"k{n}", event_id=f"{n}") for n in range(200)])
    async with await read(bus, topic, prefetch=5) as reader:
        (stuck,) = await reader.take()
        count = 1
        while not await reader.silent(0.5):
            await reader.messages(1)
            count += 1
        assert 20 <= count <= 40
        await stuck.ack()
        assert len(await reader.messages(200 - count)) == 200 - count


async def test_subscription_to_an_unknown_topic(bus, caplog):
    """It waits, says so once, and is not connected."""
    caplog.set_level(logging.WARNING, "semel.transports.kafka")
    async with await read(bus, f"test-{uuid4().hex}") as reader:
        async with asyncio.timeout(20):
            while "UNKNOWN_TOPIC_OR_PART" not in caplog.text:
                await asyncio.sleep(0.01)
        assert not reader.subscription.is_connected()
        assert await reader.subscription.lag() is None
    assert caplog.text.count("UNKNOWN_TOPIC_OR_PART") == 1


def test_abandoned_event_loop(service):
    """The thread of a subscription that nobody closed ends with its event loop."""
    name = f"test-{uuid4().hex}"

    async def subscribe() -> None:
        await KafkaMessageBus(service("kafka")).subscribe(name, group="g")

    asyncio.run(subscribe())
    for thread in threading.enumerate():
        if thread.name == f"semel-kafka-{name}":
            thread.join(20)
            assert not thread.is_alive()
