"""Outage is not failure: no event loses an attempt, and one bad event stops nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError, PublishError
from semel.settings import TopicPolicy
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
    keyed,
    projector,
    row,
    rows,
    running,
    sqlite_only,
    statuses,
    untouched,
)

#: More probes than an event has attempts.
MANY = 8


def raise_for(*event_ids: str):
    async def script(messages: Sequence[MessageEnvelope]) -> None:
        if {message.event_id for message in messages} & set(event_ids):
            raise TypeError("cannot pickle this")

    return script


@each_database
async def test_an_outage_longer_than_all_retries(storage: SqlAlchemyStorage):
    """R14: attempts are untouched, nothing is DEAD, everything drains afterwards, in order."""
    bus, counts = ScriptedBus(), Counts()
    bus.faults.outage = True
    await add_many(storage, keyed(100, 10))
    async with running(projector(storage, bus, observer=counts, max_retry_attempts=2)):
        await eventually(lambda: bus.pings >= MANY)
        await untouched(storage)
        assert 1 == counts.gauges["outbox_circuit_open the broker"]
        bus.faults.outage = False
        await eventually(lambda: all_sent(storage))
    await untouched(storage)
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
    assert 0 == counts.gauges["outbox_circuit_open the broker"]


@pytest.mark.parametrize("kind", ["destination", "unknown"])
@pytest.mark.parametrize("keys", [1, 10])
@sqlite_only
async def test_trouble_that_the_broker_reports_per_message(
    storage: SqlAlchemyStorage, kind: str, keys: int
):
    """R13, finding 10: credentials are refused although the broker answers to a ping."""
    bus = ScriptedBus()
    bus.faults.reject(kind=kind)  # type: ignore[arg-type]
    await add_many(storage, keyed(50, keys))
    async with running(projector(storage, bus, max_retry_attempts=2)):
        await eventually(lambda: bus.pings >= MANY)
        await untouched(storage)
        bus.faults.clear()
        await eventually(lambda: all_sent(storage))
    await untouched(storage)
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_an_exception_that_escapes_for_every_batch(storage: SqlAlchemyStorage):
    """The ping passes, but whatever is published raises."""
    ids = [event_id for event_id, _ in keyed(50, 5)]
    bus = ScriptedBus(raise_for(*ids))
    await add_many(storage, keyed(50, 5))
    async with running(projector(storage, bus, max_retry_attempts=2)):
        await eventually(lambda: bus.pings >= MANY)
        await untouched(storage)
        bus.script = None
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_a_full_window_of_one_topic_in_an_outage_recovers(storage: SqlAlchemyStorage):
    """The only topic was suspected and held; it is tried again by itself."""
    bus = ScriptedBus()
    bus.faults.reject(kind="destination")
    await add_many(storage, keyed(1500, 100))
    async with running(projector(storage, bus)) as relay:
        await eventually(lambda: bool(relay._publisher.destinations.topics))
        bus.faults.clear()
        await eventually(lambda: all_sent(storage))
    await untouched(storage)
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_a_broker_that_never_answers(storage: SqlAlchemyStorage):
    """A call that takes too long is trouble with the destination, too."""

    async def hang(_: Sequence[MessageEnvelope]) -> None:
        await asyncio.Event().wait()

    bus = ScriptedBus(hang)
    await add_many(storage, keyed(10, 5))
    async with running(projector(storage, bus, publish_timeout_seconds=0.05)):
        await eventually(lambda: bus.pings >= MANY)
        await untouched(storage)
        bus.script = None
        await eventually(lambda: all_sent(storage))


@sqlite_only
async def test_a_cancellation_inside_the_bus_is_trouble_and_no_hot_loop(
    storage: SqlAlchemyStorage,
):
    """A client that cancels its own futures when it closes must not look like our own stop."""

    async def cancelled(_: Sequence[MessageEnvelope]) -> None:
        raise asyncio.CancelledError

    bus = ScriptedBus(cancelled)
    await add_many(storage, keyed(10, 5))
    async with running(projector(storage, bus)):
        await eventually(lambda: bus.pings >= 3)
        assert len(bus.tries) <= 12 * bus.pings
        bus.script = None
        await eventually(lambda: all_sent(storage))


@pytest.mark.parametrize("answer", [[None], None, [ValueError("no PublishError")] * 10])
@sqlite_only
async def test_a_bus_that_breaks_its_contract_is_in_trouble(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch, answer: object
):
    """R07: results that cannot be assigned to messages confirm nothing."""
    bus = ScriptedBus()
    good = bus.publish_many

    async def bad(messages: Sequence[MessageEnvelope]) -> object:
        bus.tries.append([])
        return answer

    monkeypatch.setattr(bus, "publish_many", bad)
    await add_many(storage, keyed(10, 10))
    async with running(projector(storage, bus, concurrency=1)):
        await eventually(lambda: bus.pings >= 1 and len(bus.tries) > 0)
        assert "SENT" not in await statuses(storage)
        monkeypatch.setattr(bus, "publish_many", good)
        await eventually(lambda: all_sent(storage))


@sqlite_only
async def test_unknown_outcomes_are_resent_with_the_same_id(storage: SqlAlchemyStorage):
    """R08: delivered, but the confirmation was lost; the key waits, no attempt is counted."""
    bus = ScriptedBus()
    lost = bus.faults.lose_confirmation(every=3, times=20)
    await add_many(storage, keyed(60, 6))
    async with running(projector(storage, bus)):
        await eventually(lambda: all_sent(storage))
    await untouched(storage)
    assert 20 == lost.hits
    assert 60 + 20 == len(bus.published_ids())
    assert 60 == len(set(bus.published_ids()))
    assert_ordered(bus.published_ids())


@sqlite_only
async def test_a_connection_lost_in_mid_batch(storage: SqlAlchemyStorage):
    """R08, invariant 11: no more duplicates than were in flight, order intact."""
    bus = ScriptedBus()
    await add_many(storage, keyed(60, 6))
    bus.faults.cut_batch(7)
    async with running(projector(storage, bus, concurrency=1)):
        await eventually(lambda: all_sent(storage))
    await untouched(storage)
    assert 60 + 7 == len(bus.published_ids())
    assert_ordered(bus.published_ids())


async def _pass_others_until_dead(storage: SqlAlchemyStorage, event_id: str) -> None:
    """Others must pass for it to be known that the trouble is the event's own."""
    for number in range(300):
        await add(storage, f"later{number}-0000", key=f"later{number}")
        if (await row(storage, event_id)).status == "DEAD":
            return
        await asyncio.sleep(0.05)
    pytest.fail("not DEAD")


async def _sent_but(storage: SqlAlchemyStorage, number: int) -> bool:
    found = await statuses(storage)
    return found.total() - found["SENT"] == number


@pytest.mark.parametrize(
    ("database", "kind"),
    [
        *(("sqlite", kind) for kind in ("permanent", "transient", "unknown", "destination")),
        *((name, "raises") for name in ("sqlite", "postgres", "mariadb")),
    ],
    indirect=["database"],
)
async def test_one_poison_event_among_a_hundred(storage: SqlAlchemyStorage, kind: str):
    """R12, R15, finding 10: the others go out, and it alone is charged and DEAD at last."""
    bus = ScriptedBus(raise_for("e3-0005") if kind == "raises" else None)
    if kind != "raises":
        bus.faults.reject(lambda m: m.event_id == "e3-0005", kind=kind)  # type: ignore[arg-type]
    await add_many(storage, keyed(100, 10))
    async with running(projector(storage, bus, max_retry_attempts=3)):
        await eventually(lambda: len(set(bus.published_ids())) == 95)
        await _pass_others_until_dead(storage, "e3-0005")
        await eventually(lambda: _sent_but(storage, 5))
    found = await rows(storage)
    assert {"e3-0005": 1 if kind == "permanent" else 3} == {
        event_id: item.retry_count for event_id, item in found.items() if item.retry_count
    }
    behind = {f"e3-{n:04d}" for n in range(6, 10)}
    assert behind == {i for i, item in found.items() if item.status not in ("SENT", "DEAD")}
    assert_ordered(bus.published_ids())
    assert "e3-0005" not in bus.published_ids()


@sqlite_only
async def test_a_poison_event_is_not_tried_in_a_hot_loop_while_others_pass(
    storage: SqlAlchemyStorage,
):
    """Batches that pass at the same time must not close the breaker that it opened."""
    bus = ScriptedBus(raise_for("bad"))
    await add(storage, "bad", key="bad")
    await add_many(storage, keyed(400, 40))
    async with running(projector(storage, bus, max_retry_attempts=3, batch_size=5)):
        await eventually(lambda: len(bus.published_ids()) >= 400)
        await _pass_others_until_dead(storage, "bad")
    assert bus.tried("bad") <= 12


@sqlite_only
async def test_a_breaker_that_stays_open_alerts_once(
    storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
):
    """Promise 6: a long-open breaker asks for a human as loudly as DEAD, and again next time."""
    bus, counts = ScriptedBus(), Counts()
    async with running(projector(storage, bus, observer=counts, breaker_alert_seconds=0.2)):
        for incident in (1, 2):
            bus.faults.outage = True
            await add_many(storage, keyed(5, 5, prefix=f"i{incident}"))
            await eventually(lambda n=incident: counts.totals["outbox_circuit_alerts_total"] == n)
            bus.faults.outage = False
            await eventually(lambda: all_sent(storage))
    assert 2 == len([r for r in caplog.records if "in trouble for" in r.getMessage()])


@sqlite_only
async def test_transient_rejections_retry_by_the_policy_of_the_topic(storage: SqlAlchemyStorage):
    """R09, R16: as many attempts as the topic allows, then DEAD with the reason."""
    from semel.retry import RetryPolicy

    bus = ScriptedBus()
    bus.faults.reject()
    patient = TopicPolicy(retry=RetryPolicy(max_attempts=4, base_seconds=0.01, max_seconds=0.01))
    await add(storage, "a", topic="patient")
    await add(storage, "b", topic="hasty")
    async with running(projector(storage, bus, topics={"patient": patient}, max_retry_attempts=2)):
        await eventually(lambda: _dead(storage, 2))
    assert (4, 2) == (bus.tried("a"), bus.tried("b"))
    found = await row(storage, "a")
    assert 4 == found.retry_count
    assert "PublishError: rejected (fault on demand)" == found.error_message
    assert "transient" == found.dead_letter["reason"]


async def _dead(storage: SqlAlchemyStorage, number: int) -> bool:
    return (await statuses(storage))["DEAD"] == number


@sqlite_only
async def test_a_failing_ping_keeps_batches_back(storage: SqlAlchemyStorage):
    """While the ping fails nothing is published: the probe is the ping."""
    bus = ScriptedBus()
    bus.faults.outage = True
    await add_many(storage, keyed(5, 5))
    async with running(projector(storage, bus, concurrency=1)):
        await eventually(lambda: bus.pings >= 5)
        assert 1 == len(bus.tries)
        with pytest.raises(BusError):
            await bus.ping()


@sqlite_only
async def test_error_texts_are_cut_and_redacted(storage: SqlAlchemyStorage):
    """R19: a long exception with a password and emoji fits the column and tells no secret."""

    async def script(_: Sequence[MessageEnvelope]) -> None:
        pass

    bus = ScriptedBus(script)
    long = "amqp://user:hunter2@host refused 🦊" + "🦊" * 100_000

    async def refuse(messages: Sequence[MessageEnvelope]) -> list[PublishError]:
        return [PublishError(long, kind="permanent")] * len(messages)

    bus.publish_many = refuse  # type: ignore[method-assign,assignment]
    await add(storage, "a")
    async with running(projector(storage, bus)):
        await eventually(lambda: _dead(storage, 1))
    found = await row(storage, "a")
    assert found.error_message is not None
    assert len(found.error_message) <= 500
    assert "hunter2" not in found.error_message + str(found.dead_letter)
