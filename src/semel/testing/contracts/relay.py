"""What a storage must do for projectors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from semel.protocols import Storage
from semel.relay import Entry, Failure, Read
from semel.states import OutboxStatus
from semel.testing.contracts.leases import LeaseContract, claim_all
from semel.testing.contracts.rows import PARTITIONS, add, bury, ids, instance, unsent


def failed(entry: Entry, *, retry_in: float | None = 60.0, attempts: int = 1) -> Failure:
    """Return what to store about a rejected attempt."""
    return Failure(entry=entry, attempts=attempts, error="nack", retry_in=retry_in, blocks=True)


class RelayStoreContract(LeaseContract):
    """Give it a fixture `storage` with empty tables, and `another` on the same database.

    The two must not share connections or memory: *another* plays another process.
    """

    #: Whether `busy` sees writers that are about to commit; else writers exclude each other.
    sees_writers = True
    #: Whether `subscribe` hears commits of other processes; else they are found by polling.
    hears_other_processes = False

    def stalled_commit(
        self, storage: Storage, *, key: str | None
    ) -> AbstractAsyncContextManager[None]:
        """Override: inside, a transaction with one event has written it but is not committed."""
        raise NotImplementedError

    # Reading

    async def test_fetch_returns_lanes_in_order(self, storage: Storage) -> None:
        """Above the floor, up to the limit, without what is known."""
        added = await add(storage, *"abcde", key="k")
        entries = await unsent(storage)
        assert added == [entry.envelope.event_id for entry in entries]
        numbers = [entry.sequence for entry in entries]
        assert sorted(numbers) == numbers
        [partition] = {entry.partition for entry in entries}

        async def read(floor: int = 0, limit: int = 10, known: Sequence[int] = ()) -> list[int]:
            found = await storage.relay.fetch([Read(partition, floor, limit, known)])
            return [entry.sequence for entry in found]

        assert numbers == await read()
        assert numbers[:2] == await read(limit=2)
        assert numbers[2:] == await read(floor=numbers[1])
        assert [numbers[0], *numbers[3:]] == await read(known=numbers[1:3])
        assert numbers[3:] == await read(limit=2, known=numbers[:3])
        assert [] == await read(floor=numbers[-1])
        assert [] == await storage.relay.fetch([Read((partition + 1) % 64, 0, 10)])

    async def test_fetch_reads_several_lanes_at_once(self, storage: Storage) -> None:
        """Each with its own floor and limit; lowest first over all of them."""
        for number in range(40):
            await add(storage, "t", key=f"k-{number}")
        entries = await unsent(storage)
        lanes = sorted({entry.partition for entry in entries})
        assert 8 < len(lanes)
        floors = {lane: entries[number].sequence for number, lane in enumerate(lanes)}
        expected = []
        for lane in lanes:
            mine = [
                e.sequence for e in entries if e.partition == lane and e.sequence > floors[lane]
            ]
            expected += mine[:2]
        found = await storage.relay.fetch([Read(lane, floors[lane], 2) for lane in lanes])
        assert sorted(expected) == [entry.sequence for entry in found]

    async def test_fetch_can_be_narrowed(self, storage: Storage) -> None:
        [mine] = await add(storage, "a")
        [theirs] = await add(storage, "a", tenant_id="acme")
        [other] = await add(storage, "b")
        assert [mine, other] == await ids(storage, tenant_id="default")
        assert [other] == await ids(storage, skip_topics=["a", "x"])
        assert [theirs] == await ids(storage, skip_tenants=["default"])
        assert [] == await ids(storage, tenant_id="acme", skip_topics=["a"])

    async def test_fetch_returns_what_is_not_due_too(self, storage: Storage) -> None:
        """A new owner must not overlook the FAILED head of a key."""
        first, second = await add(storage, "a", "b", key="k")
        projector = instance()
        epochs = await claim_all(storage, projector)
        head = (await unsent(storage))[0]
        assert {head.sequence} == set(
            await storage.relay.fail(projector, epochs, [failed(head, retry_in=60.0, attempts=3)])
        )
        entries = await unsent(storage)
        assert [first, second] == [entry.envelope.event_id for entry in entries]
        assert (OutboxStatus.FAILED, 3) == (entries[0].status, entries[0].attempts)
        assert entries[0].wait is not None
        assert 50 < entries[0].wait <= 60
        assert entries[1].wait is None

    async def test_a_lane_is_busy_while_a_writer_is_about_to_commit(self, storage: Storage) -> None:
        """Its row has a number already, but cannot be seen: the floor must not pass it."""
        if not self.sees_writers:
            pytest.skip("writers exclude each other")
        for key in ("k", None):
            assert set() == set(await storage.relay.busy(PARTITIONS))
            before = await ids(storage)
            async with self.stalled_commit(storage, key=key):
                busy = set(await storage.relay.busy(PARTITIONS))
                assert before == await ids(storage)
            [entry] = [e for e in await unsent(storage) if e.envelope.event_id not in before]
            assert {entry.partition} == busy
            assert set() == set(await storage.relay.busy(PARTITIONS))
            assert busy.isdisjoint(await storage.relay.busy([(entry.partition + 1) % 64]))

    # Outcomes

    async def test_acknowledged_rows_are_sent(self, storage: Storage) -> None:
        """Once; nothing overwrites SENT."""
        [event_id] = await add(storage, "a", key="k")
        projector = instance()
        epochs = await claim_all(storage, projector)
        [entry] = await unsent(storage)
        assert 1 == await storage.relay.acknowledge([entry.sequence], keep=True)
        assert 0 == await storage.relay.acknowledge([entry.sequence], keep=True)
        await storage.relay.begin(projector, [entry], count=True)
        assert [] == list(await storage.relay.fail(projector, epochs, [failed(entry)]))
        await storage.relay.park(projector, epochs, [entry.sequence])
        assert [] == await ids(storage)
        record = await storage.outbox.get(event_id)
        assert record is not None
        assert (OutboxStatus.SENT, 0) == (record.status, record.retry_count)
        assert record.sent_at is not None
        assert record.created_at <= record.sent_at

    async def test_acknowledged_rows_can_be_deleted(self, storage: Storage) -> None:
        added = await add(storage, "a", "b")
        numbers = [entry.sequence for entry in await unsent(storage)]
        assert 1 == await storage.relay.acknowledge(numbers[:1], keep=False)
        assert await storage.outbox.get(added[0]) is None
        assert added[1:] == await ids(storage)
        await add(storage, "c")
        assert numbers[-1] < (await unsent(storage))[-1].sequence

    async def test_many_rows_are_acknowledged_at_once(self, storage: Storage) -> None:
        await add(storage, *(["t"] * 500))
        numbers = [entry.sequence for entry in await unsent(storage)]
        assert 500 == await storage.relay.acknowledge(numbers, keep=True)
        assert [] == await ids(storage)

    async def test_begin_marks_new_and_failed_rows(self, storage: Storage) -> None:
        """With *count* the attempt is durable before it is made, also over PUBLISHING."""
        new, retried, dead = await add(storage, "a", "b", "c")
        projector = instance()
        epochs = await claim_all(storage, projector)
        entries = await unsent(storage)
        await storage.relay.fail(
            projector, epochs, [failed(entries[1], retry_in=0.0), failed(entries[2], retry_in=None)]
        )
        await storage.relay.begin(projector, entries)
        assert [
            (OutboxStatus.PUBLISHING, 0),
            (OutboxStatus.PUBLISHING, 1),
            (OutboxStatus.DEAD, 1),
        ] == [await self._state(storage, event_id) for event_id in (new, retried, dead)]
        await storage.relay.begin(projector, entries, count=True)
        assert [1, 2, 1] == [
            (await self._state(storage, event_id))[1] for event_id in (new, retried, dead)
        ]
        assert [new, retried] == await ids(storage)

    async def _state(self, storage: Storage, event_id: str) -> tuple[Any, int]:
        record = await storage.outbox.get(event_id)
        assert record is not None
        return record.status, record.retry_count

    async def test_failures_are_stored_one_by_one(self, storage: Storage) -> None:
        """FAILED with its due time, DEAD with its reason, in one call (failure mode R07)."""
        retried, dead = await add(storage, "a", "b")
        projector = instance()
        epochs = await claim_all(storage, projector)
        entries = await unsent(storage)
        error = "x" * 500 + "é😀"
        failures = [
            Failure(entry=entries[0], attempts=1, error=error, retry_in=30.0),
            Failure(
                entry=entries[1], attempts=5, error="no", retry_in=None, dead_letter={"why": "é"}
            ),
        ]
        written = await storage.relay.fail(projector, epochs, failures)
        assert {entry.sequence for entry in entries} == set(written)
        record = await storage.outbox.get(retried)
        assert record is not None
        assert (OutboxStatus.FAILED, 1, error, None) == (
            record.status,
            record.retry_count,
            record.error_message,
            record.dead_letter,
        )
        assert record.retry_after is not None
        assert record.last_attempt_at is not None
        assert timedelta(seconds=29) < record.retry_after - record.last_attempt_at
        assert timedelta(seconds=31) > record.retry_after - record.last_attempt_at
        record = await storage.outbox.get(dead)
        assert record is not None
        assert (OutboxStatus.DEAD, 5, {"why": "é"}, None) == (
            record.status,
            record.retry_count,
            record.dead_letter,
            record.retry_after,
        )

    async def test_a_zombie_writes_nothing(self, storage: Storage, another: Storage) -> None:
        """FAILED and DEAD need the lease under its epoch; parking too (failure mode R04)."""
        [event_id] = await add(storage, "a", key="k")
        zombie = instance("zombie", seconds=0.0)
        epochs = await claim_all(storage, zombie)
        [entry] = await unsent(storage)
        await claim_all(another, instance("heir"))
        assert [] == list(await storage.relay.fail(zombie, epochs, [failed(entry, retry_in=None)]))
        await storage.relay.park(zombie, epochs, [entry.sequence])
        assert [event_id] == await ids(storage)
        assert (OutboxStatus.NEW, 0) == await self._state(storage, event_id)

    async def test_a_lease_regained_is_another_lease(self, storage: Storage) -> None:
        """The same owner under an old epoch writes nothing either."""
        [event_id] = await add(storage, "a", key="k")
        projector = instance("one", seconds=0.0)
        old = await claim_all(storage, projector)
        new = await claim_all(storage, instance("one"))
        [entry] = await unsent(storage)
        assert [] == list(await storage.relay.fail(projector, old, [failed(entry)]))
        assert [entry.sequence] == list(await storage.relay.fail(projector, new, [failed(entry)]))
        assert (OutboxStatus.FAILED, 1) == await self._state(storage, event_id)

    # Blocked keys

    async def test_parked_rows_leave_the_hot_lane(self, storage: Storage) -> None:
        """And come back in their order, but for keys that are still blocked."""
        await add(storage, "t", "t", key="a")
        await add(storage, "t", "t", key="b")
        await add(storage, "t", "t")
        projector = instance()
        epochs = await claim_all(storage, projector)
        entries = await unsent(storage)
        await storage.relay.park(projector, epochs, [e.sequence for e in entries[:4]])
        await storage.relay.park(projector, epochs, [])
        assert [e.sequence for e in entries[4:]] == [e.sequence for e in await unsent(storage)]
        assert 2 == await storage.relay.unpark(PARTITIONS, blocked={("default", "b")})
        assert ["a", "a", None, None] == [e.envelope.order_key for e in await unsent(storage)]
        assert 0 == await storage.relay.unpark([], blocked=())
        assert 2 == await storage.relay.unpark(PARTITIONS, blocked=())
        assert [e.sequence for e in entries] == [e.sequence for e in await unsent(storage)]

    async def test_survey_names_blocked_keys(self, storage: Storage) -> None:
        """Of the given partitions; a DEAD event that does not block is none."""
        blocking, harmless = await add(storage, "t", key="a"), await add(storage, "t", key="b")
        await bury(storage, *blocking)
        await bury(storage, *harmless, blocks=False)
        survey = await storage.relay.survey(PARTITIONS)
        assert ({("default", "a")}, 0) == (set(survey.blocked), survey.revived)
        record = await storage.outbox.get(blocking[0])
        assert record is not None
        others = [number for number in PARTITIONS if number != record.partition_no]
        assert set() == set((await storage.relay.survey(others)).blocked)

    # Schedules

    async def test_scheduled_rows_are_promoted_when_due(self, storage: Storage) -> None:
        """By the database's clock; the next due time is told (failure mode R31)."""
        assert ({}, None) == await storage.relay.promote(PARTITIONS)
        now = datetime.now(UTC)
        [later] = await add(storage, "t", key="k", available_at=now + timedelta(hours=1))
        [due] = await add(storage, "t", key="k", available_at=now - timedelta(hours=1))
        [plain] = await add(storage, "t", key="k")
        assert [plain] == await ids(storage)
        moved, wait = await storage.relay.promote(PARTITIONS)
        entries = await unsent(storage)
        assert [due, plain] == [entry.envelope.event_id for entry in entries]
        assert {entries[0].partition: entries[0].sequence} == moved
        assert wait is not None
        assert 3500 < wait < 3700
        assert later not in await ids(storage)
        assert {} == (await storage.relay.promote(PARTITIONS))[0]

    # Waking up

    async def test_subscribers_are_woken_after_a_commit(self, storage: Storage) -> None:
        """Never before the row can be read, never by a rollback, not after unsubscribing."""
        async with _waking(storage) as (woken, unsubscribe):
            async with storage.unit_of_work() as uow:
                await uow.outbox.add("t", 1)
                await uow.rollback()
                assert not woken.is_set()
                await uow.outbox.add("t", 1)
                assert not woken.is_set()
                await uow.commit()
            async with asyncio.timeout(5):
                await woken.wait()
            assert 1 == len(await ids(storage))
            unsubscribe()
            woken.clear()
            await add(storage, "t")
            assert not woken.is_set()

    async def test_subscribers_hear_other_processes(
        self, storage: Storage, another: Storage
    ) -> None:
        if not self.hears_other_processes:
            pytest.skip("others are found by polling")
        async with _waking(storage) as (woken, _):
            async with asyncio.timeout(10):
                # The listener may need a moment before it listens.
                while not woken.is_set():
                    await add(another, "t")
                    await asyncio.sleep(0.02)


@asynccontextmanager
async def _waking(storage: Storage) -> AsyncIterator[tuple[asyncio.Event, Any]]:
    woken, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    unsubscribe = storage.relay.subscribe(wake)
    try:
        yield woken, unsubscribe
    finally:
        unsubscribe()
