"""What is measured while real events go through a real database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import event, update

from semel import ConsumerInbox, Hub, MessageEnvelope
from semel.observer import NullObserver
from semel.prometheus import PrometheusObserver
from semel.protocols import UnitOfWork
from semel.retry import RetryPolicy
from semel.sampling import Sampler
from semel.settings import TopicPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    add_many,
    config,
    each_database,
    eventually,
    keyed,
    projector,
    running,
    sqlite_only,
)


@pytest.fixture
def observer() -> PrometheusObserver:
    return PrometheusObserver(CollectorRegistry())


def value(observer: PrometheusObserver, name: str, **labels: str) -> float | None:
    return observer.registry.get_sample_value(name, labels)


@each_database
async def test_the_figures_of_the_outbox(
    storage: SqlAlchemyStorage, observer: PrometheusObserver
) -> None:
    """Backlog, failed, dead, blocked, parked, scheduled, pauses and age are those of the table."""
    bus = ScriptedBus()
    bus.faults.reject(lambda message: message.event_id == "dead-0", kind="permanent")
    bus.faults.reject(lambda message: message.event_id == "failed-0", kind="transient")
    await add_many(storage, [("dead-0", "d"), ("dead-1", "d"), ("failed-0", "f"), ("sent-0", "s")])
    await add(storage, "later", available_at=datetime.now(UTC) + timedelta(hours=1))
    # Slow to try again: FAILED stays FAILED.
    hourly = RetryPolicy(max_attempts=5, base_seconds=3600, max_seconds=3600, jitter=False)
    topics = {"orders": TopicPolicy(retry=hourly)}
    async with running(projector(storage, bus, observer=observer, topics=topics)):
        await eventually(lambda: value(observer, "outbox_died_total", topic="orders") == 1)
        await eventually(lambda: value(observer, "outbox_retries_total", topic="orders") == 1)
        await eventually(lambda: parked(storage, 1))
    await add(storage, "new", topic="others")
    await storage.outbox.pause(topic="others", reason="a test")
    sampler = Sampler(observer, outbox=storage.outbox)
    await sampler.sample()
    for name in ("failed", "dead", "blocked_keys", "parked", "scheduled", "pauses"):
        assert 1 == value(observer, f"outbox_{name}"), name
    # The new one, and of those before it what is parked or scheduled: their status is NEW, too.
    assert 3 == value(observer, "outbox_backlog")
    age = value(observer, "outbox_oldest_unsent_age_seconds")
    assert age is not None
    assert 0 < age < 600
    sampled = value(observer, "outbox_sampled_timestamp_seconds")
    assert sampled is not None
    assert abs(datetime.now(UTC).timestamp() - sampled) < 600
    published = {"topic": "orders", "transport": "memory"}
    assert 1 == value(observer, "outbox_published_total", **published)
    assert 1 == value(observer, "outbox_publish_latency_seconds_count", topic="orders")
    failures = "outbox_publish_failures_total"
    assert 1 == observer.registry.get_sample_value(failures, {"class": "permanent"})
    assert 1 == observer.registry.get_sample_value(failures, {"class": "transient"})
    assert 0 == value(observer, "outbox_leases_held")


@each_database
async def test_latency_begins_when_an_event_may_be_sent(
    storage: SqlAlchemyStorage, observer: PrometheusObserver
) -> None:
    """At its commit, at the time it was scheduled for, but never before the commit."""
    now, name = datetime.now(UTC), "outbox_publish_latency_seconds"
    moments = {
        "plain": (None, timedelta(hours=2)),
        "scheduled": (now - timedelta(hours=1), timedelta(hours=1)),
        "of the past": (now - timedelta(hours=3), timedelta(hours=2)),
    }
    relay = projector(storage, InMemoryMessageBus(), observer=observer)
    for topic, (available_at, expected) in moments.items():
        await add(storage, topic, topic=topic, available_at=available_at)
        values = {"created_at": now - timedelta(hours=2)}
        async with storage.engine.begin() as connection:
            await connection.execute(
                update(OutboxRecord).where(OutboxRecord.id == topic).values(values)
            )
        await relay.run_once()
        latency = value(observer, f"{name}_sum", topic=topic)
        assert latency is not None, topic
        assert expected.total_seconds() <= latency < expected.total_seconds() + 1800, topic
    await relay.stop()


async def parked(storage: SqlAlchemyStorage, number: int) -> bool:
    return number == (await storage.outbox.stats()).parked


@sqlite_only
async def test_a_broker_in_trouble(
    storage: SqlAlchemyStorage, observer: PrometheusObserver
) -> None:
    """The breaker is shown while it is open; meanwhile no failure is counted."""
    bus = InMemoryMessageBus()
    bus.faults.outage = True
    await add(storage, "e-1")
    name = "outbox_circuit_open"
    async with running(projector(storage, bus, observer=observer)) as relay:
        await eventually(lambda: value(observer, name, destination="the broker") == 1)
        assert len(relay.partitions) == value(observer, "outbox_leases_held")
        bus.faults.outage = False
        await eventually(lambda: value(observer, name, destination="the broker") == 0)
        await eventually(lambda: bus.published_ids() == ["e-1"])
        assert not value(observer, "outbox_wakeups_total")  # nobody has committed
        await add(storage, "e-2")
        await eventually(lambda: bus.published_ids() == ["e-1", "e-2"])
    assert value(observer, "outbox_publish_failures_total", **{"class": "destination"}) is None
    assert (value(observer, "outbox_publish_duration_seconds_count", outcome="error") or 0) >= 1
    assert 1 == value(observer, "outbox_wakeups_total")


@sqlite_only
async def test_a_projector_that_stops_leaves_no_open_breaker_behind(
    storage: SqlAlchemyStorage, observer: PrometheusObserver
) -> None:
    bus = InMemoryMessageBus()
    bus.faults.outage = True
    await add(storage, "e-1")
    async with running(projector(storage, bus, observer=observer)):
        await eventually(
            lambda: value(observer, "outbox_circuit_open", destination="the broker") == 1
        )
    assert 0 == value(observer, "outbox_circuit_open", destination="the broker")


class Calls(NullObserver):
    """Counts how often it is told something."""

    def __init__(self) -> None:
        self.number = 0
        self.values: Counter[str] = Counter()

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.number += 1
        self.values[name] += int(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.number += 1

    def record(self, name: str, *values: float, **labels: str) -> None:
        self.number += 1
        self.values[name] += len(values)


@sqlite_only
async def test_observation_costs_per_batch(storage: SqlAlchemyStorage) -> None:
    """A batch of 200 events makes as many calls as a batch of one."""
    numbers = []
    for size in (1, 200):
        calls = Calls()
        relay = projector(storage, InMemoryMessageBus(), observer=calls, batch_size=200)
        await add_many(storage, keyed(size, size, prefix=f"n{size}x"))
        assert size == await relay.run_once()
        await relay.stop()
        numbers.append(calls.number)
        assert size == calls.values["outbox_published_total"]
        assert size == calls.values["outbox_publish_latency_seconds"]
    assert numbers[0] == numbers[1]


@sqlite_only
async def test_observation_of_a_batch_of_messages_costs_as_one(storage: SqlAlchemyStorage) -> None:
    """Messages that share a transaction are told of together, by type and outcome."""
    numbers = []
    seen: list[object] = []
    for size in (2, 50):
        calls = Calls()
        inbox = ConsumerInbox(storage, "billing", observer=calls)
        messages = [
            MessageEnvelope(topic="orders", payload={}, event_id=f"{size}-{n}") for n in range(size)
        ]
        for _ in range(2):
            await inbox.process_batch(messages, seen.append)
        numbers.append(calls.number)
        for name in ("processed_total", "duplicates_total", "processing_duration_seconds"):
            assert size == calls.values[f"consumer_inbox_{name}"]
    assert numbers[0] == numbers[1] == 3


@each_database
async def test_a_sample_costs_the_same_for_many_rows(storage: SqlAlchemyStorage) -> None:
    """The number of statements does not grow with the table."""
    sampler = Sampler(NullObserver(), outbox=storage.outbox)
    counts = []
    for prefix, size in (("a", 1), ("b", 500)):
        await add_many(storage, keyed(size, 50, prefix=prefix))
        with statements(storage) as seen:
            await sampler.sample()
        counts.append(len(seen))
    assert counts[0] == counts[1]
    assert 1 <= counts[0] <= 12


@contextmanager
def statements(storage: SqlAlchemyStorage) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_connection: object, _cursor: object, text: str, *_: object) -> None:
        if "FROM outbox" in text:  # not what opens a connection, or wakes projectors
            seen.append(text)

    engine = storage.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


@each_database
async def test_a_hub_measures_all_of_it(
    storage: SqlAlchemyStorage, observer: PrometheusObserver
) -> None:
    """From one observer: the projector, the consumer, its inbox, the samples, the clean-up."""
    bus = InMemoryMessageBus()
    bus.faults.duplicate(lambda message: message.event_id == "twice")
    hub = Hub(
        "shop", storage=storage, bus=bus, config=config(), observer=observer, sample_seconds=0.05
    )
    failures = iter([True])

    @hub.on("orders", "OrderPlaced")
    async def handle(message: MessageEnvelope, uow: UnitOfWork) -> None:
        if message.event_id == "again" and next(failures, False):
            raise RuntimeError("once")

    @hub.commands.handler(str)
    async def shout(command: str) -> str:
        return command.upper()

    async with hub.running():
        async with hub.unit_of_work() as uow:
            for event_id, kind in [
                ("once", "OrderPlaced"),
                ("twice", "OrderPlaced"),
                ("again", "OrderPlaced"),
                ("unknown", "OrderLost"),
            ]:
                await uow.outbox.add("orders", {}, event_type=kind, event_id=event_id)
            await uow.commit()
        await hub.drain()
        assert "HI" == await hub.commands.execute("hi")
        await eventually(lambda: value(observer, "outbox_backlog") == 0)
        labels = {"consumer_name": "shop", "topic": "orders"}
        await eventually(lambda: value(observer, "consumer_connected", **labels) == 1)
        await eventually(lambda: value(observer, "consumer_lag_messages", **labels) == 0)
    handled = {"consumer_name": "shop", "event_type": "OrderPlaced"}
    assert 3 == value(observer, "consumer_inbox_processed_total", **handled)
    assert 1 == value(observer, "consumer_inbox_duplicates_total", **handled)
    duration = "consumer_inbox_processing_duration_seconds_count"
    assert 3 == value(observer, duration, **handled)
    assert 1 == value(observer, "consumer_handler_errors_total", **handled)
    unknown = {"consumer_name": "shop", "reason": "unknown_type"}
    assert 1 == value(observer, "consumer_inbox_parked_total", **unknown)
    assert 1 == value(observer, "command_duration_seconds_count", command="str", outcome="ok")
    await hub.cleanup()
    assert 0 == value(observer, "cleanup_removed_total", table="outbox")
