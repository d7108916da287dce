"""What operators may do to the outbox of a storage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from semel.errors import ConfigurationError, InvalidMessageError, StorageError
from semel.operations import AuditFilter, OutboxFilter, Progress, Verb
from semel.protocols import Storage
from semel.states import OutboxStatus
from semel.testing.contracts.rows import PARTITIONS, add, bury, ids, send

_NO_AGE = timedelta(seconds=-60)


class OutboxRepairContract:
    """Give it a fixture `storage` with empty tables."""

    @pytest.mark.parametrize("verb", [Verb.REQUEUE, Verb.RELEASE, Verb.DROP])
    async def test_bulk_changes_dead_events_that_match(self, storage: Storage, verb: Verb) -> None:
        """Batch by batch, and nothing else; the audit holds one row with the sum."""
        events = [(await add(storage, "a", key=f"k{n}"))[0] for n in range(5)]
        [other] = await add(storage, "b", key="other")
        [alive] = await add(storage, "a")
        await bury(storage, *events, other)
        where = OutboxFilter(topic="a")
        progress = await _run(storage, verb, where, batch_size=2, actor="ann")
        assert [2, 4, 5] == [step.changed for step in progress if step.changed]
        assert progress[-1].finished
        assert not progress[0].finished
        left = {r.id: r.status for r in await storage.outbox.search()}
        assert ("DEAD", "NEW") == (left[other], left[alive])
        expected = {Verb.REQUEUE: "NEW", Verb.RELEASE: "DEAD", Verb.DROP: None}[verb]
        assert {expected} == {left.get(event_id) for event_id in events}
        blocked = (await storage.relay.survey(PARTITIONS)).blocked
        assert {("default", "other")} == set(blocked)
        [row] = await storage.audit.search(AuditFilter(action=f"outbox.{verb}"))
        assert "ann" == row.actor
        assert row.detail is not None
        assert (5, {"topic": "a", "status": "DEAD"}) == (
            row.detail["changed"],
            row.detail["filter"],
        )

    async def test_bulk_stops_when_nobody_asks_on(self, storage: Storage) -> None:
        """What is done stays done, and the rest can be done later."""
        events = await add(storage, *"abcde", key="k")
        await _bury_all(storage, events)
        step = await anext(storage.outbox.bulk(Verb.REQUEUE, batch_size=2))
        assert (2, False) == (step.changed, step.finished)
        assert events[:2] == await _unparked(storage)
        again = await _run(storage, Verb.REQUEUE, after=step.position)
        assert 3 == again[-1].changed
        assert events == await _unparked(storage)

    async def test_bulk_leaves_later_rows_alone(self, storage: Storage) -> None:
        """What was not there at the start is not touched, whatever becomes of it."""
        events = await add(storage, "a", "b", "c")
        await bury(storage, *events)
        steps = storage.outbox.bulk(Verb.DROP, batch_size=1)
        first = await anext(steps)
        [late] = await add(storage, "d")
        await bury(storage, late)
        rest = [step async for step in steps]
        assert (1, 3) == (first.changed, rest[-1].changed)
        assert [late] == [record.id for record in await storage.outbox.search()]

    async def test_a_dry_run_only_counts(self, storage: Storage) -> None:
        events = await add(storage, *"abc")
        await bury(storage, *events)
        progress = await _run(storage, Verb.DROP, dry_run=True, batch_size=2)
        assert (3, True, True) == (
            progress[-1].changed,
            progress[-1].dry_run,
            progress[-1].finished,
        )
        assert 3 == len(await storage.outbox.search(OutboxFilter(status=OutboxStatus.DEAD)))
        assert [] == await storage.audit.search()

    async def test_several_operators_requeue_each_row_once(self, storage: Storage) -> None:
        """Each row is counted by one of them, and keys keep their order (R28)."""
        events = await add(storage, *["a"] * 30, key="k")
        await _bury_all(storage, events)
        answers = await asyncio.gather(
            *(_run(storage, Verb.REQUEUE, batch_size=7) for _ in range(3))
        )
        assert 30 == sum(steps[-1].changed for steps in answers)
        assert events == await _unparked(storage)
        rows = await storage.audit.search(AuditFilter(action="outbox.requeue"))
        assert 30 == sum((row.detail or {})["changed"] for row in rows)

    async def test_requeued_rows_are_taken_up_together(self, storage: Storage) -> None:
        """A projector meets none of them before it can meet all, from the lowest on."""
        first, second, third = await add(storage, "a", "b", "c", key="k")
        await _bury_all(storage, [first, second])
        assert 2 == await storage.outbox.requeue([second, first])
        assert [third] == await ids(storage)
        assert [first, second, third] == await _unparked(storage)

    async def test_replay_sends_again_what_was_sent(self, storage: Storage) -> None:
        """The same ids in the same order; what is not SENT is left alone."""
        sent = await add(storage, *"abcd", key="k")
        await send(storage, *sent)
        [dead, new] = await add(storage, "e", "f", key="k")
        await bury(storage, dead)
        progress = await _run(storage, Verb.REPLAY, OutboxFilter(key="k"), batch_size=3)
        assert (4, True) == (progress[-1].changed, progress[-1].finished)
        assert [*sent, new] == await _unparked(storage)
        record = await storage.outbox.get(sent[0])
        assert record is not None
        assert ("NEW", 0) == (record.status, record.retry_count)
        assert record.sent_at is not None

    async def test_replay_stops_after_a_canary(self, storage: Storage) -> None:
        sent = await add(storage, *"abcde")
        await send(storage, *sent)
        [step] = await _run(storage, Verb.REPLAY, limit=2)
        assert (2, True) == (step.changed, step.finished)
        assert sent[:2] == await _unparked(storage)
        rest = await _run(storage, Verb.REPLAY, after=step.position)
        assert 3 == rest[-1].changed

    async def test_replay_keeps_a_rate(self, storage: Storage) -> None:
        """Batches are no larger than what a second may hold."""
        sent = await add(storage, *"abcdef")
        await send(storage, *sent)
        started = asyncio.get_running_loop().time()
        progress = await _run(storage, Verb.REPLAY, rate=20.0, batch_size=2)
        assert [2, 4, 6] == [step.changed for step in progress if step.changed]
        assert 0.2 <= asyncio.get_running_loop().time() - started

    async def test_a_row_that_was_sent_again_is_not_replayed_again(self, storage: Storage) -> None:
        """However many operators replay, and however fast projectors are."""
        sent = await add(storage, "a", "b")
        await send(storage, *sent)
        slow = storage.outbox.bulk(Verb.REPLAY, batch_size=1)
        first = await anext(slow)
        quick = await _run(storage, Verb.REPLAY)
        await storage.relay.unpark(PARTITIONS, blocked=())
        await send(storage, *sent)
        rest = [step async for step in slow]
        assert (1, 1, 1) == (first.changed, quick[-1].changed, rest[-1].changed)

    async def test_bulk_refuses_what_makes_no_sense(self, storage: Storage) -> None:
        for verb, where, options in (
            (Verb.REPLAY, OutboxFilter(status=OutboxStatus.DEAD), {}),
            (Verb.DROP, OutboxFilter(status=OutboxStatus.SENT), {}),
            (Verb.DROP, None, {"batch_size": 0}),
            (Verb.REPLAY, None, {"rate": 0}),
            (Verb.REPLAY, None, {"limit": 0}),
        ):
            with pytest.raises(ConfigurationError):
                await _run(storage, verb, where, **options)
        with pytest.raises(InvalidMessageError, match="actor"):
            await _run(storage, Verb.DROP, actor="")

    async def test_an_edited_event_is_new_and_takes_the_old_ones_place(
        self, storage: Storage
    ) -> None:
        """The old one stays DEAD and blocks nothing; each names the other."""
        first, second = await add(storage, "a", "b", key="k", metadata={"source": "shop"})
        await bury(storage, first)
        new = await storage.outbox.edit_and_requeue_as_new(first, {"fixed": 1.0}, actor="ann")
        assert new not in (first, second)
        assert [new, second] == await _unparked(storage)
        fresh, old = await storage.outbox.get(new), await storage.outbox.get(first)
        assert fresh is not None
        assert old is not None
        assert ({"fixed": 1.0}, "NEW", 0, None, "k") == (
            fresh.payload,
            fresh.status,
            fresh.retry_count,
            fresh.error_message,
            fresh.order_key,
        )
        assert {"source": "shop", "edited_from": first} == fresh.event_metadata
        assert ("DEAD", {"number": 0}, {"reason": "no route"}) == (
            old.status,
            old.payload,
            old.dead_letter,
        )
        assert set() == set((await storage.relay.survey(PARTITIONS)).blocked)
        [row] = await storage.audit.search(AuditFilter(action="outbox.edit"))
        assert ("ann", first) == (row.actor, row.target)
        assert {"new_id": new, "created_at": fresh.created_at.isoformat()} == row.detail
        assert old.created_at >= fresh.created_at
        with pytest.raises(StorageError, match="NEW"):
            await storage.outbox.edit_and_requeue_as_new(second, {})
        with pytest.raises(StorageError, match="not there"):
            await storage.outbox.edit_and_requeue_as_new("unknown", {})

    async def test_every_action_is_written_down(self, storage: Storage) -> None:
        """Who, what, on what; nothing for what changed nothing."""
        one, two, three = await add(storage, "a", "b", "c")
        await bury(storage, one, two, three)
        for act in (
            storage.outbox.requeue([one], actor="ann"),
            storage.outbox.requeue([one], actor="too late"),
            storage.outbox.release([two], actor="bob"),
            storage.outbox.drop([two, three], actor="ann"),
            storage.outbox.pause(topic="a", reason="tests", actor="ann"),
            storage.outbox.resume(topic="a", actor="bob"),
            storage.outbox.resume(topic="a", actor="too late"),
        ):
            await act
        rows = (await storage.audit.search())[::-1]
        assert [
            ("ann", "outbox.requeue", one),
            ("bob", "outbox.release", two),
            ("ann", "outbox.drop", "2 events"),
            ("ann", "outbox.pause", "topic a"),
            ("bob", "outbox.resume", "topic a"),
        ] == [(row.actor, row.action, row.target) for row in rows]
        assert all(row.at.tzinfo is not None for row in rows)
        assert {"changed": 2, "ids": [two, three]} == rows[2].detail
        page = await storage.audit.search(AuditFilter(actor="ann"), limit=2)
        assert (["outbox.pause", "outbox.drop"], rows[2].id) == (
            [row.action for row in page],
            page.next,
        )
        [last] = await storage.audit.search(AuditFilter(actor="ann"), before=page.next)
        assert "outbox.requeue" == last.action

    async def test_rows_are_archived_before_they_are_deleted(self, storage: Storage) -> None:
        """Payloads included, batch by batch; an archive that fails keeps them."""
        sent = await add(storage, *"abcde", metadata={"m": "1"})
        await send(storage, *sent)
        [kept] = await add(storage, "kept")
        archived: list[Any] = []

        async def archive(rows: Sequence[Any]) -> None:
            archived.append(rows)
            if len(archived) == 2:
                raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await storage.outbox.cleanup(older_than=_NO_AGE, batch_size=2, archive=archive)
        assert {kept, *sent[2:]} == {record.id for record in await storage.outbox.search()}
        count = await storage.outbox.cleanup(
            older_than=_NO_AGE, archive=archived.append, actor="cron"
        )
        assert 3 == count
        assert [sent[:2], sent[2:4], sent[2:]] == [[row["id"] for row in b] for b in archived]
        assert ({"number": 0}, {"m": "1"}) == (
            archived[0][0]["payload"],
            archived[0][0]["event_metadata"],
        )
        assert [kept] == [record.id for record in await storage.outbox.search()]
        newest, _ = await storage.audit.search(AuditFilter(action="outbox.cleanup"))
        assert ("cron", 3) == (newest.actor, (newest.detail or {})["deleted"])


async def _run(
    storage: Storage, verb: Verb, where: OutboxFilter | None = None, **options: Any
) -> list[Progress]:
    return [step async for step in storage.outbox.bulk(verb, where, **options)]


async def _bury_all(storage: Storage, event_ids: Sequence[str]) -> None:
    for event_id in event_ids:
        await bury(storage, event_id, blocks=False)


async def _unparked(storage: Storage) -> list[str]:
    """What is hot once a projector has taken parked rows up."""
    await storage.relay.unpark(PARTITIONS, blocked=())
    return await ids(storage)
