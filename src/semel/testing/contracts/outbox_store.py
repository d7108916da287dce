"""What the outbox of a storage must do for operators."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from semel.errors import ConfigurationError, InvalidMessageError
from semel.operations import OutboxFilter
from semel.protocols import Storage
from semel.states import OutboxStatus
from semel.testing.contracts.rows import PARTITIONS, add, bury, ids, instance, unsent

_NO_AGE = timedelta(seconds=-60)  # even what was sent a moment ago is older than this


class OutboxStoreContract:
    """Give it a fixture `storage` with empty tables."""

    async def test_get(self, storage: Storage) -> None:
        [event_id] = await add(storage, "orders", key="k")
        record = await storage.outbox.get(event_id)
        assert record is not None
        assert ("orders", "k", {"number": 0}, "NEW") == (
            record.topic,
            record.order_key,
            record.payload,
            record.status,
        )
        assert timedelta(0) == record.created_at.utcoffset()
        assert await storage.outbox.get(event_id + " ") is None

    async def test_search_pages_from_the_newest(self, storage: Storage) -> None:
        added = await add(storage, "a", "b", "a", "b", "a")
        await add(storage, "a", tenant_id="acme")
        pages: list[str] = []
        before: int | None = None
        while page := await storage.outbox.search(
            OutboxFilter(tenant_id="default"), before=before, limit=2
        ):
            assert 2 >= len(page)
            pages += [record.id for record in page]
            before = page[-1].sequence
        assert added[::-1] == pages
        assert [added[3], added[1]] == [
            r.id for r in await storage.outbox.search(OutboxFilter(topic="b"))
        ]
        assert 1 == len(await storage.outbox.search(OutboxFilter(tenant_id="acme")))
        assert [] == await storage.outbox.search(OutboxFilter(status=OutboxStatus.DEAD))

    async def test_stats_count_by_status(self, storage: Storage) -> None:
        empty = await storage.outbox.stats()
        assert dict.fromkeys(OutboxStatus, 0) == empty.counts
        assert (None, 0, 0) == (empty.oldest_unsent_seconds, empty.blocked_keys, empty.scheduled)
        added = await add(storage, "a", "b", "c", key="k")
        await add(storage, "d", tenant_id="acme")
        await add(storage, "e", available_at=datetime.now(UTC) + timedelta(hours=1))
        sent = [e.sequence for e in await unsent(storage) if e.envelope.event_id == added[0]]
        await storage.relay.acknowledge(sent, keep=True)
        await bury(storage, added[1])
        stats = await storage.outbox.stats()
        assert (1, 1, 3) == (
            stats.counts[OutboxStatus.SENT],
            stats.counts[OutboxStatus.DEAD],
            stats.counts[OutboxStatus.NEW],
        )
        assert (1, 1) == (stats.blocked_keys, stats.scheduled)
        assert stats.oldest_unsent_seconds is not None
        assert 0 <= stats.oldest_unsent_seconds < 60
        ours = await storage.outbox.stats(tenant_id="acme")
        assert {OutboxStatus.NEW: 1} == {s: n for s, n in ours.counts.items() if n}

    async def test_requeue_makes_dead_events_new(self, storage: Storage) -> None:
        """With no attempts counted, at their old place; other states are left alone."""
        first, second = await add(storage, "a", "b", key="k")
        await bury(storage, first)
        assert [second] == await ids(storage)
        assert 1 == await storage.outbox.requeue([first, second, "unknown"])
        await storage.relay.unpark(PARTITIONS, blocked=())
        assert [first, second] == await ids(storage)
        record = await storage.outbox.get(first)
        assert record is not None
        assert ("NEW", 0, None) == (record.status, record.retry_count, record.retry_after)
        assert 0 == await storage.outbox.requeue([])

    async def test_two_operators_requeue_a_row_once(self, storage: Storage) -> None:
        """Of many requests at the same time one wins (failure mode R28)."""
        added = await add(storage, "a", "b", key="k")
        await bury(storage, added[0])
        answers = await asyncio.gather(*(storage.outbox.requeue(added) for _ in range(8)))
        assert [0, 0, 0, 0, 0, 0, 0, 1] == sorted(answers)

    async def test_release_lets_the_key_go_on(self, storage: Storage) -> None:
        """The event stays DEAD, and can still be requeued."""
        first, second = await add(storage, "a", "b", key="k")
        await bury(storage, first)
        assert {("default", "k")} == set((await storage.relay.survey(PARTITIONS)).blocked)
        assert 1 == await storage.outbox.release([first, second])
        assert 0 == await storage.outbox.release([first])
        assert set() == set((await storage.relay.survey(PARTITIONS)).blocked)
        record = await storage.outbox.get(first)
        assert record is not None
        assert ("DEAD", {"reason": "no route"}) == (record.status, record.dead_letter)
        assert 0 == (await storage.outbox.stats()).blocked_keys
        assert 1 == await storage.outbox.requeue([first])

    async def test_drop_deletes_dead_events_only(self, storage: Storage) -> None:
        first, second = await add(storage, "a", "b", key="k")
        await bury(storage, first)
        assert 1 == await storage.outbox.drop([first, second])
        assert await storage.outbox.get(first) is None
        assert [second] == await ids(storage)
        assert set() == set((await storage.relay.survey(PARTITIONS)).blocked)

    async def test_operators_are_noticed_at_the_next_heartbeat(self, storage: Storage) -> None:
        """The number of interventions rises with each of them."""
        [event_id] = await add(storage, "a", key="k")
        await bury(storage, event_id)
        projector = instance()
        seen = [(await storage.relay.heartbeat(projector)).operations]
        for act in (
            storage.outbox.release([event_id]),
            storage.outbox.requeue([event_id]),
            storage.outbox.pause(topic="a"),
            storage.outbox.resume(topic="a"),
        ):
            await act
            seen.append((await storage.relay.heartbeat(projector)).operations)
        assert seen == sorted(set(seen))

    async def test_pauses_are_kept(self, storage: Storage) -> None:
        """Everything, a topic or a tenant; every projector learns of them."""
        await storage.outbox.pause(reason="maintenance")
        await storage.outbox.pause(topic="orders")
        await storage.outbox.pause(topic="orders", reason="again")
        await storage.outbox.pause(tenant_id="acme")
        expected = {(None, None, "maintenance"), ("orders", None, "again"), (None, "acme", None)}
        for pauses in (
            await storage.outbox.pauses(),
            (await storage.relay.heartbeat(instance())).pauses,
        ):
            assert expected == {(p.topic, p.tenant_id, p.reason) for p in pauses}
            assert all(p.since is not None and p.since.tzinfo is not None for p in pauses)
        assert await storage.outbox.resume(topic="orders")
        assert not await storage.outbox.resume(topic="orders")
        assert await storage.outbox.resume()
        assert ["acme"] == [pause.tenant_id for pause in await storage.outbox.pauses()]

    async def test_pause_and_resume_by_several_operators(self, storage: Storage) -> None:
        """Nobody's pause is lost, and a pause is ended once."""
        topics = [f"t-{n}" for n in range(5)]
        await asyncio.gather(*(storage.outbox.pause(topic=topic) for topic in topics))
        assert set(topics) == {pause.topic for pause in await storage.outbox.pauses()}
        ended = await asyncio.gather(*(storage.outbox.resume(topic="t-0") for _ in range(4)))
        assert 1 == sum(ended)

    async def test_a_pause_is_of_a_topic_or_a_tenant(self, storage: Storage) -> None:
        with pytest.raises(ConfigurationError):
            await storage.outbox.pause(topic="a", tenant_id="b")
        with pytest.raises(InvalidMessageError):
            await storage.outbox.pause(topic="")
        assert [] == await storage.outbox.pauses()

    async def test_cleanup_deletes_what_is_sent_and_old(self, storage: Storage) -> None:
        """Whatever else there is stays, however old (failure mode R29)."""
        sent = await add(storage, *"abcdefg")
        await storage.relay.acknowledge([e.sequence for e in await unsent(storage)], keep=True)
        dead, new = await add(storage, "dead", "new")
        await bury(storage, dead)
        other = await add(storage, "other", tenant_id="acme")
        await storage.relay.acknowledge(
            [e.sequence for e in await unsent(storage, tenant_id="acme")], keep=True
        )
        assert 0 == await storage.outbox.cleanup(older_than=timedelta(hours=1))
        assert 7 == await storage.outbox.cleanup(
            older_than=_NO_AGE, tenant_id="default", batch_size=2
        )
        assert {dead, new, *other} == {record.id for record in await storage.outbox.search()}
        assert 1 == await storage.outbox.cleanup(older_than=_NO_AGE)
        assert {dead, new}.isdisjoint(sent)
        with pytest.raises(ConfigurationError):
            await storage.outbox.cleanup(older_than=_NO_AGE, batch_size=0)

    async def test_progress_of_a_cleanup_may_end_it(self, storage: Storage) -> None:
        """It is told after each transaction; what is deleted by then stays deleted."""
        await add(storage, *"abcdefg")
        await storage.relay.acknowledge([e.sequence for e in await unsent(storage)], keep=True)
        told: list[int] = []

        def enough(number: int) -> None:
            told.append(number)
            if number >= 4:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            await storage.outbox.cleanup(older_than=_NO_AGE, batch_size=2, progress=enough)
        assert [2, 4] == told
        assert 3 == len(await storage.outbox.search())
