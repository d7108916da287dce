"""A topic that the broker does not take stops no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.envelope import MessageEnvelope
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.relaying import (
    Counts,
    ScriptedBus,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    each_database,
    eventually,
    keyed,
    projector,
    running,
    sqlite_only,
    untouched,
)


@each_database
async def test_a_missing_topic_stops_no_other(storage: SqlAlchemyStorage):
    """R11: its events wait untouched, in order, and go out when it exists."""
    bus, counts = ScriptedBus(), Counts()
    missing = bus.faults.reject(lambda m: m.topic == "missing", kind="destination")
    await add_many(storage, keyed(50, 5), topic="missing")
    await add_many(storage, keyed(50, 5, prefix="other"), topic="present")
    async with running(projector(storage, bus, observer=counts)):
        await eventually(lambda: len(bus.published_ids("present")) == 50)
        await eventually(lambda: counts.gauges.get("outbox_circuit_open missing") == 1)
        before = missing.hits
        await add_many(storage, keyed(50, 5, prefix="more"), topic="present")
        await eventually(lambda: len(bus.published_ids("present")) == 100)
        await eventually(lambda: missing.hits >= before + 3)
        await untouched(storage)
        bus.faults.clear()
        await eventually(lambda: all_sent(storage))
    assert 0 == counts.gauges["outbox_circuit_open missing"]
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_a_missing_topic_with_more_events_than_the_window_stops_no_other(
    storage: SqlAlchemyStorage,
):
    """R11: the others are found behind a window full of events that cannot be sent."""
    bus = ScriptedBus()
    bus.faults.reject(lambda m: m.topic == "missing", kind="destination")
    await add_many(storage, keyed(2500, 50), topic="missing")
    await add_many(storage, keyed(50, 5, prefix="other"), topic="present")
    async with running(projector(storage, bus)):
        await eventually(lambda: len(bus.published_ids("present")) == 50)
        await untouched(storage)
        bus.faults.clear()
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_a_slow_probe_of_a_topic_is_made_once_at_a_time(storage: SqlAlchemyStorage):
    """While one probe is under way, no second one starts."""
    at_once: list[int] = []
    inside = 0

    async def script(messages: Sequence[MessageEnvelope]) -> None:
        nonlocal inside
        if messages[0].topic == "missing" and len(messages) == 1:
            inside += 1
            at_once.append(inside)
            await asyncio.sleep(0.2)
            inside -= 1

    bus = ScriptedBus(script)
    bus.faults.reject(lambda m: m.topic == "missing", kind="destination")
    await add_many(storage, [("m-0000", "m"), ("m-0001", "m")], topic="missing")
    await add_many(storage, keyed(5, 5, prefix="other"), topic="present")
    async with running(projector(storage, bus)):
        await eventually(lambda: len(at_once) >= 3)
    assert {1} == set(at_once)


@sqlite_only
async def test_a_topic_in_trouble_does_not_keep_a_partition_from_being_handed_over(
    storage: SqlAlchemyStorage,
):
    """R17: the newcomer gets its share although a probe waits for the topic."""
    bus = ScriptedBus()
    bus.faults.reject(lambda m: m.topic == "missing", kind="destination")
    await add_many(storage, keyed(64, 64), topic="missing")
    await add_many(storage, keyed(5, 5, prefix="other"), topic="present")
    first = projector(storage, bus, breaker_max_seconds=60.0)
    async with running(first):
        await eventually(lambda: bool(first._publisher.destinations.topics))
        second = projector(storage, bus)
        async with running(second):
            await eventually(lambda: len(second.partitions) == len(first.partitions) == 32)
            bus.faults.clear()
