"""The projector's own behaviour, on SQLite and the in-memory bus."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from semel.clock import SystemClock
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, InvalidMessageError
from semel.observer import NullObserver
from semel.projector import OutboxProjector
from semel.retry import RetryPolicy
from semel.settings import OutboxProjectorConfig, TopicPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.relaying import (
    Counts,
    ScriptedBus,
    add,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    eventually,
    execute,
    keyed,
    projector,
    row,
    rows,
    running,
    statuses,
)
from tests.services import Database


@pytest.fixture
async def storage(sqlite: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        yield storage


class Flaky:
    """A store of which one method fails some times, as a database does that is restarted."""

    def __init__(self, target: Any, method: str, times: int) -> None:
        self._target = target
        self._method = method
        self.left = times

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name != self._method or not self.left:
            return value

        async def fail(*_: Any, **__: Any) -> None:
            self.left -= 1
            raise OperationalError("SELECT 1", None, Exception("server closed the connection"))

        return fail


class CountingClock(SystemClock):
    """Tells how often it was asked."""

    asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return super().monotonic()


class TestConstruction:
    def test_it_needs_a_bus(self, storage: SqlAlchemyStorage):
        with pytest.raises(ConfigurationError, match="message_bus"):
            OutboxProjector(storage.session_factory)

    def test_it_needs_one_source_of_events(self, storage: SqlAlchemyStorage):
        bus = InMemoryMessageBus()
        with pytest.raises(ConfigurationError, match="session_factory"):
            OutboxProjector(message_bus=bus)
        with pytest.raises(ConfigurationError, match="session_factory"):
            OutboxProjector(storage.session_factory, bus, store=storage.relay)

    def test_it_belongs_to_the_default_tenant_or_to_one_or_to_all(self, storage: SqlAlchemyStorage):
        bus, acme = InMemoryMessageBus(), OutboxProjectorConfig(default_tenant_id="acme")
        assert "default" == OutboxProjector(message_bus=bus, store=storage.relay).tenant_id
        assert (
            "acme" == OutboxProjector(message_bus=bus, store=storage.relay, config=acme).tenant_id
        )
        each = OutboxProjector(message_bus=bus, store=storage.relay, tenant_id=None, config=acme)
        assert each.tenant_id is None

    def test_a_bad_tenant_is_refused(self, storage: SqlAlchemyStorage):
        with pytest.raises(InvalidMessageError):
            OutboxProjector(message_bus=InMemoryMessageBus(), store=storage.relay, tenant_id="")


async def test_it_says_when_it_is_ready(storage: SqlAlchemyStorage):
    """Before its first heartbeat and after its end it is not."""
    each = projector(storage, ScriptedBus())
    assert not each.is_ready
    assert "the first heartbeat" == each.waiting_for
    async with running(each):
        await eventually(lambda: each.is_ready)
        assert each.waiting_for is None
        assert 64 == len(each.partitions)
    assert not each.is_ready
    assert frozenset() == each.partitions


async def test_it_makes_its_own_store_of_a_session_factory(storage: SqlAlchemyStorage):
    """As in the specification; what it made it closes, the engine it leaves."""
    bus = ScriptedBus()
    await add(storage, "a")
    each = OutboxProjector(session_factory=storage.session_factory, message_bus=bus)
    async with each:
        assert 1 == await each.run_once()
    assert {"SENT": 1} == await statuses(storage)


async def test_it_runs_only_once_at_a_time(storage: SqlAlchemyStorage):
    each = projector(storage, ScriptedBus())
    async with running(each):
        await eventually(lambda: each.is_ready)
        with pytest.raises(ConfigurationError, match="already running"):
            await each.run_forever()
        with pytest.raises(ConfigurationError, match="already running"):
            await each.run_once()


async def test_it_can_be_started_again(storage: SqlAlchemyStorage):
    bus = ScriptedBus()
    each = projector(storage, bus)
    for number in range(3):
        async with running(each):
            await add(storage, f"e{number}")
            await eventually(lambda n=number: each.published == n + 1)
    assert ["e0", "e1", "e2"] == bus.published_ids()


async def test_stopped_before_it_began_it_does_not_begin(storage: SqlAlchemyStorage):
    """A service that stops at once must not wait for ever."""
    each = projector(storage, ScriptedBus())
    task = asyncio.create_task(each.run_forever())
    await each.stop()
    async with asyncio.timeout(5):
        await task
    assert not each.is_ready


async def test_a_commit_in_another_thread_wakes_it(storage: SqlAlchemyStorage):
    """`wake` may be called from any thread."""
    bus = ScriptedBus()
    idle = {"sleep_busy": 30.0, "sleep_idle": 30.0, "sweep_seconds": 30.0}
    async with (
        SqlAlchemyStorage(storage.engine.url) as elsewhere,
        running(projector(storage, bus, **idle)) as each,
    ):
        await eventually(lambda: each.is_ready)
        await add(elsewhere, "a")
        thread = threading.Thread(target=each.wake)
        thread.start()
        await eventually(lambda: bus.published_ids() == ["a"], seconds=5)
        thread.join()


async def test_what_it_counts(storage: SqlAlchemyStorage):
    """Every observer but the null one is told, those that derive from it as well."""
    counts, bus = Counts(), ScriptedBus()
    await add_many(storage, keyed(10, 2))
    async with running(projector(storage, bus, observer=counts)):
        await eventually(lambda: all_sent(storage))
    assert 10 == counts.totals["outbox_published_total"]
    assert issubclass(Counts, NullObserver)


async def test_sent_rows_are_deleted_if_they_are_not_to_be_kept(storage: SqlAlchemyStorage):
    bus = ScriptedBus()
    await add_many(storage, keyed(10, 2))
    async with running(projector(storage, bus, keep_sent=False)):
        await eventually(lambda: _empty(storage))
    assert 10 == len(bus.published_ids())


async def _empty(storage: SqlAlchemyStorage) -> bool:
    return not await rows(storage)


async def test_an_attempt_that_takes_long_is_visible(storage: SqlAlchemyStorage):
    """PUBLISHING is shown after a second, and never written over SENT."""
    go_on = asyncio.Event()

    async def wait(_: object) -> None:
        await go_on.wait()

    bus = ScriptedBus(wait)
    await add(storage, "a")
    async with running(projector(storage, bus)):
        await eventually(lambda: _is(storage, "a", "PUBLISHING"))
        go_on.set()
        await eventually(lambda: all_sent(storage))
    assert 0 == (await row(storage, "a")).retry_count


async def _is(storage: SqlAlchemyStorage, event_id: str, status: str) -> bool:
    return (await row(storage, event_id)).status == status


@pytest.mark.parametrize(
    "method", ["heartbeat", "claim", "survey", "unpark", "promote", "busy", "fetch"]
)
async def test_it_goes_on_after_a_failing_statement(storage: SqlAlchemyStorage, method: str):
    """D04: the database is left alone for a moment, then everything is tried again."""
    store, bus = Flaky(storage.relay, method, 2), ScriptedBus()
    await add_many(storage, keyed(20, 4))
    async with running(projector(storage, bus, store=store, lease_seconds=5.0)):
        await eventually(lambda: all_sent(storage))
        if method == "busy":  # asked only when there is something in memory
            store.left = 0
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


async def test_an_acknowledgement_that_fails_is_repeated(storage: SqlAlchemyStorage):
    """R01: nothing is sent again as long as the lease holds."""
    store, bus = Flaky(storage.relay, "acknowledge", 2), ScriptedBus()
    await add_many(storage, keyed(20, 4))
    async with running(projector(storage, bus, store=store, lease_seconds=10.0)):
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())


async def test_a_mark_that_cannot_be_stored_is_no_hot_loop(storage: SqlAlchemyStorage):
    """While the database is down a rejected event waits with its key, and is tried again later."""
    store, bus = Flaky(storage.relay, "fail", 3), ScriptedBus()
    bus.faults.reject(lambda m: m.event_id == "e0-0000", times=4)
    await add_many(storage, keyed(20, 4))
    async with running(projector(storage, bus, store=store, lease_seconds=10.0)):
        await eventually(lambda: all_sent(storage))
    assert 5 == bus.tried("e0-0000")
    assert_ordered(bus.published_ids())
    assert 1 == (await row(storage, "e0-0000")).retry_count


async def test_a_retry_that_is_due_during_a_probe_is_no_hot_loop(storage: SqlAlchemyStorage):
    """Nothing goes out before the probe has its answer: there is no reason to turn."""
    clock, asked, answer = CountingClock(), asyncio.Event(), asyncio.Event()

    class SilentBus(ScriptedBus):
        async def ping(self) -> None:
            asked.set()
            await answer.wait()

    async def cut(messages: Sequence[MessageEnvelope]) -> None:
        if any(m.event_id == "second" for m in messages) and not answer.is_set():
            raise ConnectionError("cut")

    bus = SilentBus(cut)
    bus.faults.reject(lambda m: m.event_id == "first", times=1)
    await add(storage, "first", key="a")
    retry = RetryPolicy(base_seconds=3.0, max_seconds=3.0, jitter=False)
    options = {"lease_seconds": 60.0, "sweep_seconds": 30.0}
    options |= {"topics": {"orders": TopicPolicy(retry=retry)}}
    async with running(projector(storage, bus, clock=clock, **options)) as relay:
        await eventually(lambda: _is(storage, "first", "FAILED"))
        await add(storage, "second", key="b")
        await asked.wait()
        await eventually(lambda: (relay._window.next_due() or math.inf) < clock.monotonic())
        before = clock.asked
        for _ in range(300):
            await asyncio.sleep(0)
        assert clock.asked - before < 100
        answer.set()
        await eventually(lambda: all_sent(storage))


async def test_rows_of_writers_that_bypass_the_locks_are_late_and_not_lost(
    storage: SqlAlchemyStorage,
):
    """Finding 1: a sweep finds rows below the floor, and counts them."""
    bus, counts = ScriptedBus(), Counts()
    bus.faults.reject(lambda m: m.event_id == "held")
    await add_many(storage, [("late", "k"), ("held", "k")])
    await execute(storage, "UPDATE outbox SET lane = NULL, order_key = NULL WHERE id = 'late'")
    partition = (await row(storage, "late")).partition_no
    far = {"retry_base_seconds": 60, "retry_max_seconds": 60}
    async with running(projector(storage, bus, observer=counts, **far)) as each:
        await eventually(lambda: partition in each.partitions)
        await eventually(lambda: each._window.lanes[partition].safe == 1)
        await execute(storage, "UPDATE outbox SET lane = partition_no WHERE id = 'late'")
        await eventually(lambda: bus.published_ids() == ["late"])
    assert 1 == counts.totals["outbox_late_total"]


def test_children_of_a_fork_are_different_projectors(sqlite: Database, tmp_path: Path):
    """R34: gunicorn makes it before it forks; both children must not take the same name."""
    storage = SqlAlchemyStorage(sqlite.url)
    each = projector(storage, InMemoryMessageBus())
    names = {each._tenure.instance.id}
    for number in range(2):
        child = os.fork()
        if child == 0:
            each._tenure.enter()
            (tmp_path / str(number)).write_text(each._tenure.instance.id)
            os._exit(0)
        os.waitpid(child, 0)
        names.add((tmp_path / str(number)).read_text())
    each._tenure.enter()
    assert 3 == len(names)
    assert each._tenure.instance.id in names


async def test_a_bus_of_another_event_loop_is_trouble_that_says_so(
    storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
):
    """The reason is in the log; no event is blamed."""
    bus = InMemoryMessageBus()
    await asyncio.to_thread(asyncio.run, bus.start())
    await add(storage, "a")
    async with running(projector(storage, bus)) as each:
        await eventually(lambda: each._publisher.destinations.broker.trips >= 2)
    assert "another event loop" in caplog.text
    assert 0 == (await row(storage, "a")).retry_count


async def test_envelopes_reach_the_bus_as_they_were_added(storage: SqlAlchemyStorage):
    """Invariant 5: id, key, type, tenant, metadata and payload survive the table."""
    seen: list[MessageEnvelope] = []

    async def script(messages: Any) -> None:
        seen.extend(messages)

    async with storage.unit_of_work(tenant_id="acme") as uow:
        await uow.outbox.add(
            "orders",
            {"total": 1.5, "who": "Zoë"},
            event_type="OrderPlaced",
            event_id="e1",
            aggregate_type="Order",
            aggregate_id="7",
            routing_key="eu",
            metadata={"user_id": "u1"},
            schema_version=3,
        )
        await uow.commit()
    async with projector(storage, ScriptedBus(script)) as each:
        await each.run_once()
    [found] = seen
    assert ("e1", "acme", "orders", "OrderPlaced", "Order:7", "eu", 3) == (
        found.event_id,
        found.tenant_id,
        found.topic,
        found.event_type,
        found.order_key,
        found.routing_key,
        found.schema_version,
    )
    assert {"total": 1.5, "who": "Zoë"} == found.payload
    assert "u1" == found.user_id
