"""What is paused waits, across restarts, and goes on in order."""

from __future__ import annotations

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    eventually,
    keyed,
    parked,
    projector,
    rows,
    running,
    sqlite_only,
)


@pytest.mark.parametrize(
    ("database", "what"),
    [
        *(("sqlite", what) for what in ("topic", "tenant", "everything")),
        ("postgres", "topic"),
        ("mariadb", "tenant"),
    ],
    indirect=["database"],
)
async def test_a_pause_survives_a_restart_and_ends_in_order(storage: SqlAlchemyStorage, what: str):
    """What is paused waits without losing attempts; the rest goes on; resumed it is in order."""
    bus = ScriptedBus()
    pause = {"topic": {"topic": "orders"}, "tenant": {"tenant_id": "default"}, "everything": {}}
    await storage.outbox.pause(**pause[what], reason="maintenance")
    await add_many(storage, keyed(20, 4))
    for number in range(2):  # the second one finds what the first one parked
        async with running(projector(storage, bus)) as relay:
            await add(storage, f"x-{number}", key="x", topic="invoices", tenant_id="other")
            if what == "everything":
                await eventually(lambda relay=relay: relay._publisher.destinations.is_paused)
                await eventually(lambda relay=relay: relay.is_ready)
            else:
                await eventually(lambda n=number: f"x-{n}" in bus.published_ids())
        expected = [] if what == "everything" else [f"x-{n}" for n in range(number + 1)]
        assert expected == bus.published_ids()
    async with running(projector(storage, bus)):
        assert await storage.outbox.resume(**pause[what])
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
    assert {0} == {r.retry_count for r in (await rows(storage)).values()}


@sqlite_only
async def test_a_pause_holds_a_running_projector_within_a_heartbeat(storage: SqlAlchemyStorage):
    """Nothing of a paused topic goes out after the next heartbeat, and all of it when resumed."""
    bus = ScriptedBus()
    async with running(projector(storage, bus)) as relay:
        await eventually(lambda: relay.is_ready)
        await storage.outbox.pause(topic="orders")
        await eventually(lambda: relay._window.holds.topics == {"orders"})
        await add_many(storage, keyed(300, 3))
        await add_many(storage, keyed(5, 5, prefix="other"), topic="invoices")
        await eventually(lambda: len(bus.published_ids("invoices")) == 5)
        await eventually(lambda: parked(storage, 300))
        assert [] == bus.published_ids("orders")
        await storage.outbox.resume(topic="orders")
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_what_is_paused_stays_parked_at_a_sweep(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
):
    """A large backlog behind a pause is not moved to and fro by every sweep."""
    bus = ScriptedBus()
    await storage.outbox.pause(topic="orders")
    await add_many(storage, keyed(100, 10))
    async with running(projector(storage, bus, sweep_seconds=0.05)):
        await eventually(lambda: parked(storage, 100))
        moved: list[int] = []
        unpark, survey = storage.relay.unpark, storage.relay.survey
        surveys = 0

        async def unpark_counted(*args, **kwargs):
            moved.append(await unpark(*args, **kwargs))
            return moved[-1]

        async def survey_counted(*args, **kwargs):
            nonlocal surveys
            surveys += 1
            return await survey(*args, **kwargs)

        monkeypatch.setattr(storage.relay, "unpark", unpark_counted)
        monkeypatch.setattr(storage.relay, "survey", survey_counted)
        await eventually(lambda: surveys >= 3)
        assert 0 == sum(moved)


@sqlite_only
async def test_events_of_one_key_in_two_topics_of_which_one_is_paused(
    storage: SqlAlchemyStorage,
):
    """Finding 8: a paused topic holds its keys, in other topics too."""
    bus = ScriptedBus()
    await storage.outbox.pause(topic="paused")
    for number in range(30):
        topic = "paused" if number % 3 == 1 else "open"
        await add(storage, f"e0-{number:04d}", key="e0", topic=topic)
    await add(storage, "free-0000", key="free", topic="open")
    async with running(projector(storage, bus)):
        await eventually(lambda: "free-0000" in bus.published_ids())
        await eventually(lambda: parked(storage, 29))
        assert {"e0-0000", "free-0000"} == set(bus.published_ids())
        await storage.outbox.resume(topic="paused")
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
