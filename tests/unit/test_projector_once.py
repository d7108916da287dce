"""`run_once` and `run_forever` with events that are not due yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from semel.projector import OutboxProjector
from semel.retry import RetryPolicy
from semel.settings import TopicPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing import FakeClock
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    add_many,
    assert_ordered,
    eventually,
    execute,
    keyed,
    projector,
    running,
)
from tests.services import Database


@pytest.fixture
async def storage(sqlite: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        yield storage


async def test_run_once_leaves_delayed_events_for_the_next_call(storage: SqlAlchemyStorage):
    """It does not wait for retries, and it does not raise for trouble with the broker."""
    bus = ScriptedBus()
    bus.faults.reject(times=1)
    await add(storage, "a")
    async with projector(storage, bus, retry_base_seconds=60, retry_max_seconds=60) as each:
        assert 0 == await each.run_once()
        assert 0 == await each.run_once()
    bus.faults.outage = True
    await execute(storage, "UPDATE outbox SET retry_after = NULL")
    async with projector(storage, bus) as each:
        assert 0 == await each.run_once()
        bus.faults.outage = False
        await eventually(lambda: _sends(each))


async def _sends(each: OutboxProjector) -> bool:
    return await each.run_once() == 1


class Slow:
    """A store of which one method calls a function before it answers."""

    def __init__(self, target: Any, method: str, delay: Callable[[], Any]) -> None:
        self._target = target
        self._method = method
        self._delay = delay

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name != self._method:
            return value

        async def slow(*given: Any, **options: Any) -> Any:
            answer = await value(*given, **options)
            waiting = self._delay()
            if waiting is not None:
                await waiting
            return answer

        return slow


async def test_a_retry_waits_from_the_rejection_on(storage: SqlAlchemyStorage):
    """Not from when the rejection is stored, which may take its time."""
    bus, clock = ScriptedBus(), FakeClock()
    bus.faults.reject(times=1)
    await add(storage, "a")
    slow = Slow(storage.relay, "fail", lambda: clock.advance(1))
    policy = TopicPolicy(retry=RetryPolicy(base_seconds=2, max_seconds=2, jitter=False))
    options = {"topics": {"orders": policy}, "lease_seconds": 30}
    async with projector(storage, bus, clock=clock, store=slow, **options) as each:
        assert 0 == await each.run_once()
        clock.advance(0.9)
        assert 0 == await each.run_once()
        clock.advance(0.2)
        assert 1 == await each.run_once()


async def test_what_is_read_goes_out_before_scheduled_events_are_looked_for(
    storage: SqlAlchemyStorage,
):
    """Nor does it wait for the next heartbeat, two seconds later."""
    bus, found = ScriptedBus(), []

    async def look() -> None:
        await eventually(lambda: bus.published_ids() == ["a"], seconds=1.5)
        found.append("a")

    await add(storage, "a")
    slow = Slow(storage.relay, "promote", look)
    async with running(projector(storage, bus, store=slow, lease_seconds=60)):
        await eventually(lambda: bus.published_ids() == ["a"])
    assert ["a"] == found[:1]


async def test_run_once_takes_a_window_at_a_time(storage: SqlAlchemyStorage):
    bus = ScriptedBus()
    await add_many(storage, keyed(1500, 30))
    async with projector(storage, bus, lease_seconds=30) as each:
        first = await each.run_once()
        assert 0 < first <= 1500
        total = first
        while sent := await each.run_once():
            total += sent
    assert 1500 == total == len(bus.published_ids())
    assert_ordered(bus.published_ids())


class TestScheduled:
    """R31: nobody tells the projector, and yet scheduled events go out in time."""

    async def test_added_where_it_cannot_be_heard(self, storage: SqlAlchemyStorage):
        """A process elsewhere adds it; polling finds it long before the next sweep."""
        bus = ScriptedBus()
        async with (
            SqlAlchemyStorage(storage.engine.url) as elsewhere,
            running(projector(storage, bus, sweep_seconds=600)) as each,
        ):
            await eventually(lambda: each.is_ready)
            await asyncio.sleep(0.3)  # it has looked, and there was nothing
            await add(elsewhere, "a", available_at=datetime.now(UTC) + timedelta(seconds=0.5))
            await eventually(lambda: bus.published_ids() == ["a"], seconds=5)

    async def test_taken_over(self, storage: SqlAlchemyStorage):
        """Whoever gets a partition learns what is scheduled in it."""
        bus = ScriptedBus()
        second = projector(storage, bus, sweep_seconds=600, sleep_busy=600, sleep_idle=600)
        async with running(second):
            async with running(projector(storage, bus)) as first:
                await eventually(lambda: len(first.partitions) == len(second.partitions) == 32)
                for number in range(8):
                    due = datetime.now(UTC) + timedelta(seconds=2)
                    await add(storage, f"e{number}", key=f"k{number}", available_at=due)
            await eventually(lambda: len(bus.published_ids()) == 8, seconds=10)

    async def test_projectors_of_two_tenants(self, storage: SqlAlchemyStorage):
        """What is due of one tenant is not moved, and lost from sight, by the other's projector."""
        bus = ScriptedBus()
        mine = projector(storage, bus, tenant_id="a", sweep_seconds=600)
        other = projector(storage, bus, tenant_id="b", sweep_seconds=600)
        async with running(mine, other):
            await eventually(lambda: mine.is_ready and other.is_ready)
            for tenant in "ab":
                for number in range(30):
                    await add(storage, f"{tenant}{number}", key=f"k{number % 5}", tenant_id=tenant)
            await eventually(lambda: len(bus.published_ids()) == 60)
            for tenant in "ab":
                due = datetime.now(UTC) + timedelta(seconds=0.5)
                for number in range(5):
                    await add(
                        storage,
                        f"later-{tenant}{number}",
                        key=f"k{number}",
                        tenant_id=tenant,
                        available_at=due,
                    )
            await eventually(lambda: len(bus.published_ids()) == 70, seconds=5)
