"""Operators repair while projectors run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from semel.envelope import MessageEnvelope
from semel.errors import PublishError
from semel.hub import Hub
from semel.inbox import ConsumerInbox
from semel.operations import AuditFilter, OutboxFilter, ReasonKind, Verb
from semel.sqlalchemy.layout import DEAD_BLOCKING, DEAD_RELEASED
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.relaying import (
    ScriptedBus,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    config,
    each_database,
    eventually,
    execute,
    keyed,
    projector,
    row,
    running,
    sqlite_only,
)


async def _bury(storage: SqlAlchemyStorage, *, blocks: bool) -> int:
    """Make all rows DEAD, as an hour of rejections would."""
    base = DEAD_BLOCKING if blocks else DEAD_RELEASED
    return await execute(
        storage, f"UPDATE outbox SET status = 'DEAD', lane = partition_no + {base}"
    )


@each_database
async def test_replay_while_the_relay_runs(storage: SqlAlchemyStorage):
    """Same ids, order per key, and consumers that have an inbox skip all of it."""
    bus = ScriptedBus()
    handled: list[str] = []
    inbox = ConsumerInbox(storage, consumer_name="billing")

    async def consume(event_id: str) -> None:
        await inbox.process_idempotent(event_id, "orders", "e", {"id": event_id}, effect)

    async def effect(payload: dict[str, str]) -> None:
        handled.append(payload["id"])

    events = keyed(60, 6)
    await add_many(storage, events)
    async with running(projector(storage, bus)):
        await eventually(lambda: all_sent(storage))
        first = bus.published_ids()
        for event_id in first:
            await consume(event_id)
        now = datetime.now(UTC)
        where = OutboxFilter(since=now - timedelta(hours=1), until=now + timedelta(hours=1))
        late = keyed(12, 6, prefix="late")
        replaying = storage.outbox.bulk(Verb.REPLAY, where, batch_size=7)
        async for step in replaying:
            if step.batches == 2:
                await add_many(storage, late)
        assert 60 == step.changed
        await eventually(lambda: len(bus.published_ids()) >= 60 + 60 + 12)
        await eventually(lambda: all_sent(storage))
    replayed = [i for i in bus.published_ids()[len(first) :] if not i.startswith("late")]
    assert sorted(first) == sorted(replayed)
    assert_no_duplicates(replayed)
    assert_ordered(replayed)
    assert_ordered(i for i in bus.published_ids() if i.startswith("late"))
    for event_id in replayed:
        await consume(event_id)
    assert 60 == len(handled)


@each_database
async def test_requeue_keeps_the_order_of_a_key_that_is_being_read(storage: SqlAlchemyStorage):
    """Rows far below and just above the point up to which a projector has read."""
    bus = ScriptedBus()
    events = keyed(40, 2)
    await add_many(storage, events)
    assert 40 == await _bury(storage, blocks=False)
    async with running(projector(storage, bus)):
        await add_many(storage, keyed(10, 2, prefix="other"))
        await eventually(lambda: len(bus.published_ids()) == 10)
        steps = [step async for step in storage.outbox.bulk(Verb.REQUEUE, batch_size=3)]
        assert 40 == steps[-1].changed
        await eventually(lambda: all_sent(storage))
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.timeout(300)
async def test_two_operators_requeue_a_hundred_thousand_events(storage: SqlAlchemyStorage):
    """Each row once, progress, a cancel in the middle, and the order of every key."""
    number = 100_000
    await execute(
        storage,
        "INSERT INTO outbox (id, tenant_id, topic, event_type, order_key, occurred_at, payload, "
        "content_type, event_metadata, status, created_at, partition_no, lane) "
        "SELECT 'id-' || n, 'default', 'orders', 'e', 'k' || n % 500, now(), '{}', "
        f"'application/json', '{{}}', 'DEAD', now(), n % 500 % 64, n % 500 % 64 + {DEAD_RELEASED} "
        f"FROM generate_series(1, {number}) AS s(n)",
    )
    seen: list[int] = []
    async for step in storage.outbox.bulk(Verb.REQUEUE, actor="first"):
        seen.append(step.changed)
        if step.changed >= 10_000:
            break
    assert [1000 * n for n in range(1, 11)] == seen

    async def requeue(actor: str) -> int:
        steps = [step async for step in storage.outbox.bulk(Verb.REQUEUE, actor=actor)]
        assert steps[-1].finished
        assert steps[-1].up_to == steps[-1].position
        return steps[-1].changed

    answers = await asyncio.gather(requeue("ann"), requeue("bob"))
    assert number - 10_000 == sum(answers)
    audit = await storage.audit.search(AuditFilter(action="outbox.requeue"))
    changed = {record.actor: (record.detail or {})["changed"] for record in audit}
    expected = {"first": 10_000, "ann": answers[0], "bob": answers[1]}
    assert {actor: number for actor, number in expected.items() if number} == changed
    bus = ScriptedBus()
    async with running(projector(storage, bus, batch_size=500, lease_seconds=30.0)):
        await eventually(lambda: len(bus.published_ids()) >= number, seconds=200)
    ids = bus.published_ids()
    assert number == len(set(ids)) == len(ids)
    last: dict[int, int] = {}
    for event_id in ids:
        n = int(event_id[3:])
        assert last.get(n % 500, 0) < n
        last[n % 500] = n


@each_database
async def test_an_edited_event_goes_out_in_the_old_ones_place(storage: SqlAlchemyStorage):
    bus = ScriptedBus()
    bus.faults.reject(lambda message: message.event_id == "e0-0001", kind="permanent")
    await add_many(storage, keyed(4, 1))
    async with running(projector(storage, bus)):
        await eventually(lambda: _is_dead(storage, "e0-0001"))
        new = await storage.outbox.edit_and_requeue_as_new("e0-0001", {"id": "better"})
        await eventually(lambda: len(bus.published_ids()) == 4)
    assert ["e0-0000", new, "e0-0002", "e0-0003"] == bus.published_ids()
    assert "DEAD" == (await row(storage, "e0-0001")).status


async def _is_dead(storage: SqlAlchemyStorage, event_id: str) -> bool:
    return (await row(storage, event_id)).status == "DEAD"


@each_database
async def test_others_see_a_projectors_breakers(storage: SqlAlchemyStorage):
    """Why and since when, without the payload or a secret; they close again."""
    bus = ScriptedBus()
    await add_many(storage, [("a", None)])

    async def refuse(_messages: object) -> None:
        raise ConnectionError("amqp://semel:CANARY-7f3@broker refused\nbody: CANARY-payload")

    bus.script = refuse
    async with running(projector(storage, bus)):
        await eventually(lambda: _has_breaker(storage))
        why = await storage.outbox.why("a")
        assert why is not None
        assert ReasonKind.BREAKER in {reason.kind for reason in why.reasons}
        assert "broker is open since" in why.sentence
        assert "CANARY" not in repr(why)
        async with storage.engine.connect() as connection:
            stored = await connection.scalars(text("SELECT detail FROM outbox_instance"))
            assert "CANARY" not in repr(list(stored))
        bus.script = None
        await eventually(lambda: all_sent(storage))
        await eventually(lambda: _is_well(storage))
        [worker] = await storage.workers.workers()
        assert (1, 0) == (worker.published, worker.failed)


async def _has_breaker(storage: SqlAlchemyStorage) -> bool:
    workers = await storage.workers.workers()
    return any(breaker.topic is None for worker in workers for breaker in worker.breakers)


async def _is_well(storage: SqlAlchemyStorage) -> bool:
    workers = await storage.workers.workers()
    return all(not worker.breakers and worker.published for worker in workers)


# Not where they are raised: a stack shows the lines of the source.
_CAUSE = "first\nDETAIL: row (CANARY-payload) password=CANARY-7f3"
_ERROR = "second\nbody CANARY-payload"


class _Talkative(ScriptedBus):
    """Rejects everything, and says too much."""

    async def publish_many(self, messages: Sequence[MessageEnvelope]) -> list[PublishError]:
        try:
            try:
                raise ValueError(_CAUSE)
            except ValueError as error:
                raise PublishError(_ERROR, kind="permanent") from error
        except PublishError as error:
            return [error] * len(messages)


@sqlite_only
async def test_a_stored_stack_holds_neither_payloads_nor_secrets(storage: SqlAlchemyStorage):
    """Drivers put parameters and rows below the first line of what they say."""
    await add_many(storage, [("a", None)])
    async with running(projector(storage, _Talkative())):
        await eventually(lambda: _is_dead(storage, "a"))
    dead = await row(storage, "a")
    assert "PublishError: second" == dead.error_message == dead.dead_letter["exception"]
    for part in ("ValueError: first", "PublishError: second", "in publish_many"):
        assert part in dead.dead_letter["stack"]
    assert "CANARY" not in repr((dead.error_message, dead.dead_letter))


@sqlite_only
async def test_draining_waits_for_what_was_requeued(storage: SqlAlchemyStorage):
    """Until the projector has heard of it, it is parked like what nobody may send."""
    bus = ScriptedBus()
    bus.faults.reject(lambda _: True, kind="permanent", times=1)
    hub = Hub("shop", storage=storage, bus=bus, config=config())
    await add_many(storage, [("a", "k"), ("b", "k")])
    async with hub.running():
        await eventually(lambda: _is_dead(storage, "a"))
        assert 1 == await storage.outbox.requeue(["a"])
        await hub.drain()
        assert ["a", "b"] == bus.published_ids()
