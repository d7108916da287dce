"""An event that fails holds back its own key; operators let it go on, in order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from semel.settings import TopicPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    add_many,
    all_sent,
    assert_ordered,
    each_database,
    eventually,
    execute,
    projector,
    row,
    rows,
    running,
    sqlite_only,
    statuses,
)


def refusing(*ids: str, kind: Any = "permanent", times: int | None = None) -> ScriptedBus:
    bus = ScriptedBus()
    bus.faults.reject(lambda message: message.event_id in ids, kind=kind, times=times)
    return bus


async def is_dead(storage: SqlAlchemyStorage, event_id: str) -> bool:
    return (await row(storage, event_id)).status == "DEAD"


@each_database
async def test_failed_event_holds_back_its_key_only(storage: SqlAlchemyStorage):
    """R17: the key's later events wait for the next attempt, other keys do not."""
    bus = refusing("a1", kind="transient", times=1)
    slow = {"orders": TopicPolicy()}
    await add_many(storage, [("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")])
    each = projector(
        storage, bus, topics=slow, retry_base_seconds=0.3, retry_max_seconds=0.3, concurrency=1
    )
    async with running(each):
        await eventually(lambda: all_sent(storage))

    published = bus.published_ids()
    assert ["a1", "a2", "a3"] == [event for event in published if event.startswith("a")]
    assert {"b1", "b2"} == set(published[:2])
    assert 1 == (await row(storage, "a1")).retry_count
    assert 0 == (await row(storage, "a2")).retry_count


@each_database
async def test_dead_event_blocks_its_key_until_requeued(storage: SqlAlchemyStorage):
    """R18: `block`: the key waits; requeued, the event goes out and then the rest, in order."""
    bus = refusing("a1", times=1)
    await add_many(storage, [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")])
    async with running(projector(storage, bus)):
        await eventually(lambda: is_dead(storage, "a1"))
        await eventually(lambda: bus.published_ids() == ["b1"])
        await add(storage, "a4", key="a")
        stats = await storage.outbox.stats()
        requeued = await storage.outbox.requeue(["a1"])
        again = await storage.outbox.requeue(["a1"])
        await eventually(lambda: all_sent(storage))

    assert 1 == stats.blocked_keys
    assert (1, 0) == (requeued, again)
    assert ["b1", "a1", "a2", "a3", "a4"] == bus.published_ids()


@each_database
async def test_dead_event_is_skipped(storage: SqlAlchemyStorage):
    """R18: `skip`: the key goes on without it; the event is kept."""
    bus = refusing("a1")
    await add_many(storage, [("a1", "a"), ("a2", "a"), ("a3", "a")])
    async with running(projector(storage, bus, on_dead="skip")):
        await eventually(lambda: bus.published_ids() == ["a2", "a3"])
        await eventually(lambda: is_dead(storage, "a1"))

    assert {"SENT": 2, "DEAD": 1} == await statuses(storage)


@pytest.mark.parametrize("verb", ["release", "drop", "sql-delete", "sql-new"])
@each_database
async def test_blocked_key_goes_on(storage: SqlAlchemyStorage, verb: str):
    """Released, dropped, deleted or set to NEW by plain SQL: the rest goes out in order."""
    bus = refusing("a1", times=1)
    await add_many(storage, [("a1", "a"), ("a2", "a"), ("a3", "a")])
    async with running(projector(storage, bus)):
        await eventually(lambda: is_dead(storage, "a1"))
        if verb == "sql-delete":
            await execute(storage, "DELETE FROM outbox WHERE id = 'a1'")
        elif verb == "sql-new":
            await execute(storage, "UPDATE outbox SET status = 'NEW' WHERE id = 'a1'")
        else:
            await getattr(storage.outbox, verb)(["a1"])
        await eventually(lambda: len(bus.published_ids()) == (3 if verb == "sql-new" else 2))

    expected = ["a1", "a2", "a3"] if verb == "sql-new" else ["a2", "a3"]
    assert expected == bus.published_ids()
    assert (verb in ("release", "sql-new")) == ("a1" in await rows(storage))


@sqlite_only
async def test_many_rows_behind_a_blocked_key_are_parked(storage: SqlAlchemyStorage):
    """R18, finding 21: they leave the hot lane, others pass, and all come back in order."""
    bus = refusing("a-0000", times=1)
    await add_many(storage, [(f"a-{n:04d}", "a") for n in range(2000)])
    async with running(projector(storage, bus, sweep_seconds=30)):
        await eventually(lambda: is_dead(storage, "a-0000"))
        await eventually(lambda: _parked(storage, 1999))
        await add(storage, "b-0000", key="b")
        await eventually(lambda: bus.published_ids() == ["b-0000"])
        await storage.outbox.requeue(["a-0000"])
        await eventually(lambda: all_sent(storage), seconds=60)

    assert_ordered(bus.published_ids())


async def _parked(storage: SqlAlchemyStorage, number: int) -> bool:
    return (await storage.outbox.stats()).parked == number


@each_database
async def test_new_owner_sees_failed_heads_and_blocked_keys(storage: SqlAlchemyStorage):
    """Finding 8: after a takeover nothing overtakes a FAILED or DEAD head."""
    bus = refusing("a1", "b1", kind="transient")
    await add_many(storage, [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")])
    topics = {"orders": TopicPolicy(on_dead="block")}
    first = projector(
        storage,
        bus,
        topics=topics,
        max_retry_attempts=2,
        retry_base_seconds=0.5,
        retry_max_seconds=0.5,
    )
    async with first:
        await first.run_once()
    bus.faults.clear()
    async with running(projector(storage, bus, topics=topics)):
        await eventually(lambda: all_sent(storage))

    assert_ordered(f"{event[0]}-{event[1]}" for event in bus.published_ids())


@each_database
async def test_pauses_hold_keys_and_survive_restarts(storage: SqlAlchemyStorage):
    """A paused topic holds its keys, also in other topics, until it is resumed, in order."""
    bus = ScriptedBus()
    await storage.outbox.pause(topic="held", reason="test")
    await add(storage, "a1", key="a", topic="held")
    await add(storage, "a2", key="a", topic="free")
    await add(storage, "b1", key="b", topic="free")
    async with running(projector(storage, bus)):
        await eventually(lambda: bus.published_ids() == ["b1"])
    async with running(projector(storage, bus)) as each:
        await eventually(lambda: each.is_ready)
        await add(storage, "b2", key="b", topic="free")
        await eventually(lambda: bus.published_ids() == ["b1", "b2"])
        await storage.outbox.resume(topic="held")
        await eventually(lambda: all_sent(storage))

    assert ["b1", "b2", "a1", "a2"] == bus.published_ids()


@pytest.mark.parametrize("what", [{}, {"tenant_id": "default"}])
@sqlite_only
async def test_everything_or_a_tenant_is_paused(storage: SqlAlchemyStorage, what: dict[str, str]):
    """Nothing goes out until resumed; another tenant does if only one is paused."""
    bus = ScriptedBus()
    await storage.outbox.pause(**what)
    async with running(projector(storage, bus)) as each:
        await eventually(lambda: each.is_ready)
        await add(storage, "a1", key="a")
        await add(storage, "o1", key="a", tenant_id="other")
        if what:
            await eventually(lambda: bus.published_ids() == ["o1"])
        else:
            await eventually(lambda: _pauses_seen(each))
            assert [] == bus.published_ids()
        await storage.outbox.resume(**what)
        await eventually(lambda: all_sent(storage))

    assert {"a1", "o1"} == set(bus.published_ids())


def _pauses_seen(each: Any) -> bool:
    return bool(each._tenure.pauses)


@sqlite_only
async def test_scheduled_event_holds_nobody(storage: SqlAlchemyStorage):
    """Finding 8: it joins its key when it is due."""
    bus = ScriptedBus()
    soon = datetime.now(UTC) + timedelta(seconds=0.7)
    await add(storage, "a1", key="a", available_at=soon)
    await add(storage, "a2", key="a")
    async with running(projector(storage, bus)):
        await eventually(lambda: all_sent(storage))

    assert ["a2", "a1"] == bus.published_ids()
