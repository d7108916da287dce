"""A failed event holds back its own key only; operators decide what becomes of a DEAD one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from semel.envelope import MessageEnvelope
from semel.retry import RetryPolicy
from semel.settings import TopicPolicy
from semel.sqlalchemy.layout import SCHEDULED
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.relaying import (
    Counts,
    ScriptedBus,
    add,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    each_database,
    eventually,
    execute,
    in_lane,
    keyed,
    parked,
    projector,
    row,
    rows,
    running,
    sqlite_only,
    statuses,
)

BAD = "e0-0001"


def is_bad(message: MessageEnvelope) -> bool:
    return message.event_id == BAD


async def _dead(storage: SqlAlchemyStorage, number: int = 1) -> bool:
    return (await statuses(storage))["DEAD"] == number


@each_database
async def test_a_failed_event_holds_back_its_own_key_only(storage: SqlAlchemyStorage):
    """R17, R18: others pass it by; when it is accepted at last, its key goes on in order."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, times=6)
    await add_many(storage, keyed(40, 4))
    async with running(projector(storage, bus, max_retry_attempts=100)):
        await eventually(lambda: len(bus.published_ids()) == 31)
        assert ["e0-0000"] == [i for i in bus.published_ids() if i.startswith("e0-")]
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
    assert 6 == (await row(storage, BAD)).retry_count


@each_database
async def test_a_dead_event_blocks_its_key_until_an_operator_requeues_it(
    storage: SqlAlchemyStorage,
):
    """R18, R28, finding 8: the mark names the reason; requeued it goes first, then the rest."""
    bus, counts = ScriptedBus(), Counts()
    bus.faults.reject(is_bad, kind="permanent")
    await add_many(storage, keyed(40, 4))
    async with running(projector(storage, bus, observer=counts)):
        await eventually(lambda: len(bus.published_ids()) == 31)
        await eventually(lambda: _dead(storage))
        await add(storage, "e0-0010", key="e0")
        await eventually(lambda: parked(storage, 9))
        assert ["e0-0000"] == [i for i in bus.published_ids() if i.startswith("e0-")]
        assert 1 == (await storage.outbox.stats()).blocked_keys
        found = await row(storage, BAD)
        assert "permanent" == found.dead_letter["reason"]
        bus.faults.clear()
        assert 1 == await storage.outbox.requeue([BAD])
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
    assert 1 == counts.totals["outbox_died_total"]


@pytest.mark.parametrize(
    ("database", "verb"),
    [
        *(("sqlite", verb) for verb in ("release", "drop", "delete by SQL")),
        ("postgres", "release"),
        ("mariadb", "drop"),
    ],
    indirect=["database"],
)
async def test_an_operator_lets_a_blocked_key_go_on_without_the_event(
    storage: SqlAlchemyStorage, verb: str
):
    """R18, finding 8: released it stays DEAD, dropped it is gone; the rest follows in order."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent")
    await add_many(storage, keyed(40, 4))
    async with running(projector(storage, bus)):
        await eventually(lambda: parked(storage, 8))
        if verb == "delete by SQL":
            assert 1 == await execute(storage, "DELETE FROM outbox WHERE status = 'DEAD'")
        else:
            assert 1 == await getattr(storage.outbox, verb)([BAD])
        await eventually(lambda: len(bus.published_ids()) == 39)
    left = {i: r.status for i, r in (await rows(storage)).items() if r.status != "SENT"}
    assert left == ({BAD: "DEAD"} if verb == "release" else {})
    assert BAD not in bus.published_ids()
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@each_database
async def test_plain_sql_brings_a_dead_event_back(storage: SqlAlchemyStorage):
    """Operators write `status = 'NEW'`, as in the specification: honoured at the next sweep."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent", times=1)
    await add_many(storage, keyed(40, 4))
    async with running(projector(storage, bus)):
        await eventually(lambda: parked(storage, 8))
        sql = "UPDATE outbox SET status = 'NEW', retry_count = 0 WHERE status = 'DEAD'"
        assert 1 == await execute(storage, sql)
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@pytest.mark.parametrize("per_topic", [True, False])
@sqlite_only
async def test_with_skip_the_key_goes_on_without_the_dead_event(
    storage: SqlAlchemyStorage, per_topic: bool
):
    """R18: the mark is stored before anything later of the key is sent."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent")
    settings = {"topics": {"orders": TopicPolicy(on_dead="skip")}} if per_topic else {}
    await add_many(storage, keyed(40, 4))
    async with running(
        projector(storage, bus, **settings or {"on_dead": "skip"})  # type: ignore[arg-type]
    ):
        await eventually(lambda: len(bus.published_ids()) == 39)
        await eventually(lambda: _dead(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
    assert 0 == (await storage.outbox.stats()).blocked_keys


@sqlite_only
async def test_the_dead_mark_is_stored_before_the_key_goes_on(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
):
    """Finding 8: were it the other way round, a successor would send the event after the next."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent")
    stored = storage.relay.fail
    marking, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args, **kwargs):
        marking.set()
        await go_on.wait()
        return await stored(*args, **kwargs)

    monkeypatch.setattr(storage.relay, "fail", slow)
    await add_many(storage, keyed(40, 4))
    async with running(projector(storage, bus, on_dead="skip")):
        await marking.wait()
        await eventually(lambda: len(bus.published_ids()) == 31)
        assert ["e0-0000"] == [i for i in bus.published_ids() if i.startswith("e0-")]
        go_on.set()
        await eventually(lambda: len(bus.published_ids()) == 39)


@sqlite_only
async def test_a_row_deleted_while_its_event_is_retried_does_not_hold_its_key(
    storage: SqlAlchemyStorage,
):
    """R28: the failed attempt finds no row to mark; the key goes on with what the table has."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad)
    await add_many(storage, keyed(40, 4))
    async with running(projector(storage, bus, max_retry_attempts=10_000)):
        await eventually(lambda: bus.tried(BAD) >= 2)
        await execute(storage, "DELETE FROM outbox WHERE id = :id", id=BAD)
        await eventually(lambda: all_sent(storage))
    assert 39 == len(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_thousands_of_rows_behind_a_blocked_key_cost_the_others_nothing(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
):
    """Finding 21: they are parked once; no later fetch meets them."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent")
    backlog = 5000
    await add_many(storage, keyed(backlog, 1))
    fetched: list[int] = []
    fetch = storage.relay.fetch

    async def counted(*args, **kwargs):
        entries = await fetch(*args, **kwargs)
        fetched.append(len(entries))
        return entries

    async with running(projector(storage, bus, batch_size=100)):
        await eventually(lambda: parked(storage, backlog - 2))
        monkeypatch.setattr(storage.relay, "fetch", counted)
        await add_many(storage, keyed(100, 10, prefix="other"))
        await eventually(lambda: len(bus.published_ids()) == 101)
        sweeps = len(fetched)
        await eventually(lambda: len(fetched) >= sweeps + 5)
        assert 100 == sum(fetched), "only the rows of the others were read"
        bus.faults.clear()
        await storage.outbox.requeue([BAD])
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_more_rows_behind_a_failed_event_than_memory_keeps(storage: SqlAlchemyStorage):
    """A retry that is far away parks its key's rows; others go on, then the key in order."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, times=2)
    await add_many(storage, keyed(2000, 1))
    await add_many(storage, keyed(50, 5, prefix="other"))
    async with running(projector(storage, bus, retry_base_seconds=1.0, retry_max_seconds=1.0)):
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@each_database
async def test_a_successor_takes_over_failed_heads_blocked_and_parked_rows(
    storage: SqlAlchemyStorage,
):
    """Finding 8: a new owner never overlooks a FAILED head, nor what waits behind a DEAD one."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent")
    bus.faults.reject(lambda m: m.event_id == "e1-0001", kind="transient")
    await add_many(storage, keyed(40, 4))
    later = RetryPolicy(base_seconds=3600, max_seconds=3600, jitter=False)
    async with running(projector(storage, bus, topics={"orders": TopicPolicy(retry=later)})):
        await eventually(lambda: len(bus.published_ids()) == 22)
        await eventually(lambda: parked(storage, 8))
    tried = bus.tried("e1-0001")
    async with running(projector(storage, bus, max_retry_attempts=100)):
        await add(storage, "e1-0010", key="e1")
        await add(storage, "new-0000", key="new")
        await eventually(lambda: "new-0000" in bus.published_ids())
        assert tried == bus.tried("e1-0001"), "its next attempt is an hour away"
        assert 23 == len(bus.published_ids())
        bus.faults.clear()
        await storage.outbox.requeue([BAD])
        await execute(storage, "UPDATE outbox SET retry_after = NULL WHERE status = 'FAILED'")
    async with running(projector(storage, bus)):
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@each_database
async def test_a_scheduled_event_joins_its_key_when_due_and_holds_nobody(
    storage: SqlAlchemyStorage,
):
    """R31: not before its time; the others of its key do not wait for it."""
    bus = ScriptedBus()
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    await add(storage, "later", key="k", available_at=due)
    await add(storage, "now-1", key="k")
    async with running(projector(storage, bus)):
        await eventually(lambda: bus.published_ids() == ["now-1"])
        assert 1 == await in_lane(storage, SCHEDULED)
        await add(storage, "now-2", key="k")
        await eventually(lambda: bus.published_ids() == ["now-1", "now-2"])
        await eventually(lambda: len(bus.published_ids()) == 3)
        assert datetime.now(UTC) >= due
        await eventually(lambda: all_sent(storage))
    assert ["now-1", "now-2", "later"] == bus.published_ids()


@sqlite_only
async def test_a_key_that_dies_during_a_survey_stays_blocked(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
):
    """Finding 8: a survey that read the table before the mark must not unblock the key."""
    bus = ScriptedBus()
    await add_many(storage, keyed(3, 1))
    survey = storage.relay.survey
    surveyed, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args, **kwargs):
        found = await survey(*args, **kwargs)
        if bus.tries:
            surveyed.set()
            await go_on.wait()
        return found

    async def wait_for_survey(_):
        await surveyed.wait()

    bus.script = wait_for_survey
    bus.faults.reject(lambda m: m.event_id == "e0-0000", kind="permanent")
    async with running(projector(storage, bus, sweep_seconds=0.05)) as relay:
        relay_survey = storage.relay
        monkeypatch.setattr(relay_survey, "survey", slow)
        await eventually(lambda: _dead(storage))
        relay._tenure.changed = True
        go_on.set()
        await eventually(lambda: parked(storage, 2))
        assert [] == bus.published_ids()


@sqlite_only
async def test_a_hundred_requeues_of_one_event_send_it_once(storage: SqlAlchemyStorage):
    """R28: one operator wins, the others change nothing."""
    bus = ScriptedBus()
    bus.faults.reject(is_bad, kind="permanent", times=1)
    await add_many(storage, keyed(4, 2))
    async with running(projector(storage, bus)):
        await eventually(lambda: _dead(storage))
        wins = await asyncio.gather(*(storage.outbox.requeue([BAD]) for _ in range(100)))
        assert 1 == sum(wins)
        await eventually(lambda: all_sent(storage))
    assert 4 == len(bus.published_ids())
