"""Consumers: one effect per message, keys in order, bounded work."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from semel.envelope import MessageEnvelope
from semel.protocols import Subscription, UnitOfWork
from semel.retry import RetryPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.consuming import (
    consumer_of,
    drained,
    job,
    letters,
    names,
    record,
    sqlite_only,
    write,
)


async def test_a_message_is_processed_and_acked(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """One delivery, one effect, one inbox row that tells by whom."""
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    assert not await consumer.is_connected()
    await bus.publish(job())
    async with consumer:
        assert await consumer.is_connected()
        await drained(consumer)
    assert not await consumer.is_connected()
    assert ["a"] == await names(storage)
    found = await record(storage)
    assert ("PROCESSED", "jobs", 1) == (found.status, found.source, found.attempts)
    assert "write" in str(found.handler)


async def test_duplicates_are_acked_without_effect(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """A broker that delivers twice causes one effect per message."""
    bus.faults.duplicate()
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    await bus.publish_many([job(str(n)) for n in range(20)])
    async with consumer:
        await drained(consumer)
    assert sorted(map(str, range(20))) == sorted(await names(storage))


async def test_two_consumers_and_two_instances(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """Every consumer processes a message, and of its instances one."""
    consumers = [consumer_of(bus, storage, name) for name in ("billing", "billing", "audit")]
    for consumer in consumers:
        consumer.on("job.assigned")(write)
        await consumer.start()
    bus.faults.duplicate()
    await bus.publish_many([job(str(n)) for n in range(20)])
    for consumer in consumers:
        await drained(consumer)
    for consumer in consumers:
        await consumer.stop()
    assert {str(n): 2 for n in range(20)} == Counter(await names(storage))


async def test_handlers_of_a_type_share_a_transaction(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """They run in the order of their registration; if the last fails, none has happened."""
    consumer = consumer_of(bus, storage)
    calls: list[str] = []

    @consumer.on("job.assigned")
    async def first(message: MessageEnvelope, uow: UnitOfWork) -> None:
        calls.append("first")
        await write(message, uow)

    @consumer.on("job.assigned")
    async def second(_message: MessageEnvelope) -> None:
        calls.append("second")
        if len(calls) == 2:
            raise ValueError("once")

    await bus.publish(job())
    async with consumer:
        await drained(consumer)
    assert ["first", "second"] * 2 == calls
    assert ["a"] == await names(storage)


async def test_the_same_id_in_two_tenants(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """Both are processed, each in a unit of work of its tenant."""
    consumer = consumer_of(bus, storage)
    tenants: list[str] = []

    @consumer.on("job.assigned")
    async def handler(_message: MessageEnvelope, uow: UnitOfWork) -> None:
        tenants.append(uow.tenant_id)

    await bus.publish_many([job(tenant_id="north"), job(tenant_id="south")])
    async with consumer:
        await drained(consumer)
    assert ["north", "south"] == sorted(tenants)


async def test_keys_keep_their_order(bus: InMemoryMessageBus, storage: SqlAlchemyStorage) -> None:
    """Messages of one key run in order, also when one of them fails at first."""
    consumer = consumer_of(bus, storage, concurrency=4)
    seen: dict[str, list[int]] = {}
    failed: set[str] = set()
    running = 0
    most = 0

    @consumer.on("job.assigned")
    async def handler(message: MessageEnvelope) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0)
            key, number = message.payload["key"], message.payload["n"]
            if number % 3 == 0 and message.event_id not in failed:
                failed.add(message.event_id)
                raise ValueError("once")
            seen.setdefault(key, []).append(number)
        finally:
            running -= 1

    await bus.publish_many(
        [
            job(f"{key}{n}", key=key, payload={"key": key, "n": n})
            for n in range(6)
            for key in "abcde"
        ]
    )
    async with consumer:
        await drained(consumer)
    assert {key: list(range(6)) for key in "abcde"} == seen
    assert most <= 4


@sqlite_only
async def test_a_failing_key_does_not_occupy_a_worker(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """While one key waits for its next attempt, the only worker serves the others."""
    patient = RetryPolicy(max_attempts=5, base_seconds=60, jitter=False)
    consumer = consumer_of(bus, storage, concurrency=1, retry=patient)
    done = asyncio.Event()

    @consumer.on("job.assigned")
    async def handler(message: MessageEnvelope, uow: UnitOfWork) -> None:
        if message.order_key == "bad":
            raise ValueError("no")
        await write(message, uow)
        if message.event_id == "id-9":
            done.set()

    await bus.publish_many([job("x", key="bad"), *(job(str(n), key=str(n)) for n in range(10))])
    await consumer.start()
    async with asyncio.timeout(20):
        await done.wait()
    await consumer.stop()
    assert 10 == len(await names(storage))


@sqlite_only
async def test_prefetch_is_bounded(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait, and whatever the broker sends, the consumer holds no more than that."""
    subscribe = bus.subscribe

    async def generous(topic: str, *, group: str, prefetch: int) -> Subscription:
        return await subscribe(topic, group=group, prefetch=100 * prefetch)

    monkeypatch.setattr(bus, "subscribe", generous)
    consumer = consumer_of(bus, storage, prefetch=5, concurrency=2)
    held: list[int] = []

    @consumer.on("job.assigned")
    async def handler(_message: MessageEnvelope) -> None:
        held.append(consumer.in_flight)

    await bus.publish_many([job(str(n)) for n in range(50)])
    async with consumer:
        await drained(consumer)
    assert 50 == len(held)
    assert max(held) <= 5


async def test_batches(bus: InMemoryMessageBus, storage: SqlAlchemyStorage) -> None:
    """Many messages share transactions; each has one effect, and keys keep their order."""
    bus.faults.duplicate(every=3)
    consumer = consumer_of(bus, storage, batch_size=20, concurrency=2)
    consumer.on("job.assigned")(write)
    await bus.publish_many([job(f"{key}{n}", key=key) for n in range(20) for key in "abc"])
    async with consumer:
        await drained(consumer)
    done = await names(storage)
    for key in "abc":
        assert [f"{key}{n}" for n in range(20)] == [name for name in done if name[0] == key]


async def test_one_bad_message_in_a_batch(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """It goes to the dead letters; the rest of its batch has its effects once, in order."""
    consumer = consumer_of(bus, storage, batch_size=10, concurrency=1)

    @consumer.on("job.assigned")
    async def handler(message: MessageEnvelope, uow: UnitOfWork) -> None:
        await write(message, uow)
        if message.payload["name"] == "b1":
            raise ValueError("no")

    await bus.publish_many([job(f"{key}{n}", key=key) for n in range(3) for key in "abc"])
    async with consumer:
        await drained(consumer)
    done = await names(storage)
    expected = {"a": ["a0", "a1", "a2"], "b": ["b0", "b2"], "c": ["c0", "c1", "c2"]}
    assert expected == {key: [name for name in done if name[0] == key] for key in "abc"}
    [letter] = await letters(storage)
    assert "id-b1" == letter.event_metadata["dead_letter_id"]
