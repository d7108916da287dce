"""Starting, stopping, dying and outages: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio

import pytest

from semel.clock import SystemClock
from semel.envelope import MessageEnvelope
from semel.errors import BusError
from semel.handling import STUBBORN
from semel.health import ConsumerHealthService
from semel.processing import RESTARTS
from semel.protocols import UnitOfWork
from semel.retry import RetryPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import InboxStatus
from semel.transports.delivery import EntryDelivery
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.consuming import (
    QUICK,
    consumer_of,
    drained,
    job,
    letters,
    names,
    prepare,
    proxy,
    record,
    sqlite_only,
    until,
    write,
)
from tests.services import Database


async def test_a_message_that_kills_the_process_does_not_loop(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """Redelivered attempts are counted before the handler, so the fourth start gives it up."""
    starts: list[int] = []
    for _ in range(6):
        inside = asyncio.Event()
        consumer = consumer_of(bus, storage)

        @consumer.on("job.assigned")
        async def hang(message: MessageEnvelope, inside: asyncio.Event = inside) -> None:
            starts.append(1)
            inside.set()
            await asyncio.Event().wait()

        if not starts:
            await bus.publish(job())
        await consumer.start()
        done = asyncio.create_task(drained(consumer))
        ran = asyncio.create_task(inside.wait())
        await asyncio.wait({done, ran}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        finished = done.done()
        for task in (done, ran):
            task.cancel()
        # As good as a crash: the transaction is undone and nothing is acked.
        await consumer.stop(drain_seconds=0)
        if finished:
            break
    # The first delivery is not counted: nobody knew that it would come again.
    assert 1 + QUICK.max_attempts == len(starts)
    found = await record(storage)
    assert (InboxStatus.DEAD, "crashed") == (found.status, str(found.reason).partition(":")[0])
    assert 1 == len(await letters(storage))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_what_did_not_end_runs_alone(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """Only what kills the process is counted on; what was beside it ends the next time."""
    most: list[int] = []
    for life in range(3):
        running: set[str] = set()
        peak = 0
        all_inside = asyncio.Event()
        consumer = consumer_of(bus, storage, concurrency=4)

        @consumer.on("job.assigned")
        async def handle(
            message: MessageEnvelope,
            uow: UnitOfWork,
            life: int = life,
            running: set[str] = running,
            all_inside: asyncio.Event = all_inside,
        ) -> None:
            nonlocal peak
            running.add(message.event_id)
            peak = max(peak, len(running))
            if len(running) == 4:
                all_inside.set()
            if life < 2:
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
            await write(message, uow)
            running.discard(message.event_id)

        if not life:
            await bus.publish_many([job(name, key=name) for name in "abcd"])
        await consumer.start()
        if life < 2:
            async with asyncio.timeout(30):
                await all_inside.wait()
            await consumer.stop(drain_seconds=0)  # as good as a crash
        else:
            await drained(consumer)
            await consumer.stop()
        most.append(peak)
    assert [4, 4, 1] == most
    assert ["a", "b", "c", "d"] == sorted(await names(storage))


async def test_a_cancelled_handler_is_no_failure(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """A stop that cannot wait undoes the handler; the next consumer runs it in full."""
    inside = asyncio.Event()
    consumer = consumer_of(bus, storage, retry=RetryPolicy(max_attempts=1))

    @consumer.on("job.assigned")
    async def hang(message: MessageEnvelope, uow: UnitOfWork) -> None:
        await write(message, uow)
        inside.set()
        await asyncio.Event().wait()

    await bus.publish(job())
    await consumer.start()
    await inside.wait()
    await consumer.stop(drain_seconds=0)
    assert [] == await names(storage)
    assert [] == await letters(storage)
    second = consumer_of(bus, storage)
    second.on("job.assigned")(write)
    async with second:
        await drained(second)
    assert ["a"] == await names(storage)


@sqlite_only
async def test_a_handler_that_swallows_cancellation(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """It finishes after all: committed and acked, or neither."""
    inside = asyncio.Event()
    consumer = consumer_of(bus, storage)

    @consumer.on("job.assigned")
    async def stubborn(message: MessageEnvelope, uow: UnitOfWork) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await write(message, uow)

    await bus.publish(job())
    await consumer.start()
    await inside.wait()
    await consumer.stop(drain_seconds=0)
    second = consumer_of(bus, storage)
    second.on("job.assigned")(write)
    async with second:
        await drained(second)
    assert ["a"] == await names(storage)


@sqlite_only
async def test_a_handler_that_leaks_a_cancellation_of_its_own(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """Nobody stops the consumer: that is a failure of the handler, and the worker lives on."""
    consumer = consumer_of(bus, storage, concurrency=1)

    @consumer.on("job.assigned")
    async def leak(message: MessageEnvelope, uow: UnitOfWork) -> None:
        if message.event_id == "id-bad":
            raise asyncio.CancelledError
        await write(message, uow)

    await bus.publish_many([job("bad"), job("good")])
    async with consumer:
        await drained(consumer)
    assert ["good"] == await names(storage)
    assert InboxStatus.DEAD == (await record(storage, "id-bad")).status


@sqlite_only
async def test_stop_finishes_what_runs_and_hands_back_the_rest(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """After stop() the running message is done and acked, the others wait for the next."""
    inside, go = asyncio.Event(), asyncio.Event()
    consumer = consumer_of(bus, storage, concurrency=1)

    @consumer.on("job.assigned")
    async def handler(message: MessageEnvelope, uow: UnitOfWork) -> None:
        inside.set()
        await go.wait()
        await write(message, uow)

    await bus.publish_many([job("a"), job("b"), job("c")])
    await consumer.start()
    await inside.wait()
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(0)
    go.set()
    await stopping
    assert ["a"] == await names(storage)
    second = consumer_of(bus, storage)
    second.on("job.assigned")(write)
    async with second:
        assert 2 == await second.lag()
        await drained(second)
    assert ["a", "b", "c"] == sorted(await names(storage))


@sqlite_only
async def test_a_subscription_that_ends_is_renewed(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """A broken subscription is not the end of the consumer."""
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    await consumer.start()
    first = consumer._subscription
    assert first is not None
    await first.close()
    await bus.publish(job())
    await until(lambda: has_effect(storage))
    await consumer.stop()


@sqlite_only
async def test_a_broker_that_is_down_at_the_start(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """start() returns; the consumer connects when the broker is there."""
    bus.faults.outage = True
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    await consumer.start()
    assert not await consumer.is_connected()
    bus.faults.outage = False
    await bus.publish(job())
    await until(lambda: has_effect(storage))
    await consumer.stop()


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
async def test_a_database_that_is_down(database: Database, bus: InMemoryMessageBus) -> None:
    """Consumption rests: no attempt is counted, nothing is acked or dead; then all goes on."""
    async with proxy(database.url) as (url, line), SqlAlchemyStorage(url) as storage:
        await prepare(storage)
        health = ConsumerHealthService()
        consumer = consumer_of(
            bus, storage, retry=RetryPolicy(max_attempts=1), health=health, concurrency=2
        )
        inside = asyncio.Event()
        calls: list[str] = []

        @consumer.on("job.assigned")
        async def handler(message: MessageEnvelope, uow: UnitOfWork) -> None:
            calls.append(message.event_id)
            if len(calls) == 1:
                inside.set()
                await line.broken.wait()
            await write(message, uow)

        await consumer.start()
        await bus.publish_many([job(str(n)) for n in range(10)])
        await inside.wait()
        await line.cut()

        async def rests() -> bool:
            return consumer.is_paused

        await until(rests)
        assert not health.get_health_status()["billing"].is_healthy
        assert 10 == await consumer.lag()
        await line.mend()
        await drained(consumer, 60)
        await consumer.stop()
        assert sorted(map(str, range(10))) == sorted(await names(storage))
        assert [] == await letters(storage)
        assert health.get_health_status()["billing"].is_healthy


async def test_an_acknowledgement_that_is_lost(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead between commit and ack: the message comes again, and is acked without an effect."""
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    await bus.publish(job())
    asked = asyncio.Event()

    async def lose(_delivery: object) -> None:
        asked.set()
        raise BusError("the channel is closed")

    with monkeypatch.context() as patch:
        patch.setattr(EntryDelivery, "ack", lose)
        await consumer.start()
        await asked.wait()
        await consumer.stop()
    second = consumer_of(bus, storage)
    second.on("job.assigned")(write)
    async with second:
        assert 1 == await second.lag()
        await drained(second)
    assert ["a"] == await names(storage)


class Hasty(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@sqlite_only
async def test_a_message_that_always_deadlocks_does_not_block_for_ever(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trouble is not counted, unless one message has it again and again on a sound database."""
    consumer = consumer_of(bus, storage, clock=Hasty())
    runs = 0
    monkeypatch.setattr(storage, "is_transient", lambda error: isinstance(error, ValueError))

    @consumer.on("job.assigned")
    async def deadlock(_message: MessageEnvelope) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("deadlock")

    await bus.publish(job())
    async with consumer:
        await drained(consumer)
    rounds = STUBBORN + QUICK.max_attempts
    assert rounds * RESTARTS.max_attempts == runs
    assert InboxStatus.DEAD == (await record(storage)).status


async def has_effect(storage: SqlAlchemyStorage) -> bool:
    return await names(storage) == ["a"]
