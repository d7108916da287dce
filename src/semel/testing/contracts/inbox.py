"""What the inbox of a storage must do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from semel.envelope import MessageEnvelope
from semel.errors import DuplicateMessageError, TransactionMisuseError
from semel.operations import InboxFilter
from semel.protocols import InboxGate, Storage
from semel.states import Admission, InboxStatus, Receipt

_ALL = timedelta(seconds=-60)  # even what was written a moment ago is older than this
_SOON = 0.3


def receipt(message_id: str = "m-1", *, payload_hash: str | None = "a" * 64) -> Receipt:
    """Return a receipt of the consumer *billing*."""
    return Receipt(
        tenant_id="default",
        consumer_name="billing",
        message_id=message_id,
        event_type="OrderPlaced",
        source="orders",
        payload_hash=payload_hash,
    )


@asynccontextmanager
async def transaction(storage: Storage, *, commit: bool = True) -> AsyncIterator[InboxGate]:
    """Open a transaction and its gate."""
    async with storage.unit_of_work(consumer_name="billing") as uow:
        yield storage.gate(uow)
        if commit:
            await uow.commit()


async def admit(storage: Storage, *receipts: Receipt) -> Sequence[Admission]:
    """Admit and complete in a transaction of its own."""
    async with transaction(storage) as gate:
        answers = await gate.admit(receipts)
        new = [r for r, a in zip(receipts, answers, strict=True) if a is Admission.NEW]
        await gate.complete(new, duration_ms=1)
    return answers


async def status_of(storage: Storage, message_id: str = "m-1") -> str | None:
    """Return the status of a record of *billing*, or None."""
    async with storage.unit_of_work(consumer_name="billing") as uow:
        record = await uow.inbox.get_record(message_id)
        return None if record is None else record.status


class InboxStoreContract:
    """Subclass, and provide a fixture `storage` with empty tables."""

    async def test_a_second_insert_is_a_duplicate(self, storage: Storage) -> None:
        """A message is new once."""
        assert [Admission.NEW] == await admit(storage, receipt())
        assert [Admission.DUPLICATE] == await admit(storage, receipt())

    async def test_try_mark_processed_tells_the_first_from_the_second(
        self, storage: Storage
    ) -> None:
        """The inbox of a unit of work accepts a message once."""
        for expected in (True, False):
            async with storage.unit_of_work() as uow:
                assert expected is await uow.inbox.try_mark_processed("m-1", "OrderPlaced")
                await uow.commit()

    async def test_mark_processed_raises_for_a_duplicate(self, storage: Storage) -> None:
        """The second mark raises, and the transaction stays usable."""
        async with storage.unit_of_work() as uow:
            record = await uow.inbox.mark_processed(
                "m-1", "OrderPlaced", {"id": 1}, "orders", {"note": "x"}
            )
            assert ("m-1", "OrderPlaced", "orders") == (
                record.message_id,
                record.event_type,
                record.source,
            )
            assert {"note": "x"} == record.extra_data
            await uow.commit()
        async with storage.unit_of_work() as uow:
            with pytest.raises(DuplicateMessageError, match="'m-1'"):
                await uow.inbox.mark_processed("m-1", "OrderPlaced")
            await uow.inbox.mark_processed("m-2", "OrderPlaced")
            await uow.commit()
        async with storage.unit_of_work() as uow:
            assert await uow.inbox.is_processed("m-1")
            assert await uow.inbox.is_processed("m-2")
            assert not await uow.inbox.is_processed("m-3")

    async def test_rollback_forgets(self, storage: Storage) -> None:
        """What is rolled back was never processed."""
        async with transaction(storage, commit=False) as gate:
            await gate.admit([receipt()])
        assert await status_of(storage) is None
        assert [Admission.NEW] == await admit(storage, receipt())

    async def test_a_concurrent_insert_waits_and_is_a_duplicate(self, storage: Storage) -> None:
        """While the first is undecided the second waits; after its commit it is a duplicate."""
        async with storage.unit_of_work(consumer_name="billing") as uow:
            gate = storage.gate(uow)
            await gate.admit([receipt()])
            second = asyncio.create_task(admit(storage, receipt()))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(second), _SOON)
            await gate.complete([receipt()], duration_ms=1)
            await uow.commit()
        async with asyncio.timeout(30):
            assert [Admission.DUPLICATE] == await second

    async def test_a_concurrent_insert_is_new_after_a_rollback(self, storage: Storage) -> None:
        """If the first rolls back, the one that waited is new."""
        async with transaction(storage, commit=False) as gate:
            await gate.admit([receipt()])
            second = asyncio.create_task(admit(storage, receipt()))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(second), _SOON)
        async with asyncio.timeout(30):
            assert [Admission.NEW] == await second

    async def test_batches_in_opposite_order_do_not_deadlock(self, storage: Storage) -> None:
        """Two batches with the same ids: each id is new in exactly one of them."""
        ids = [f"m-{n:03}" for n in range(40)]
        forth = [receipt(i) for i in ids]
        answers = await asyncio.gather(
            *(admit(storage, *(forth if n % 2 else reversed(forth))) for n in range(4))
        )
        assert 40 == sum(list(a).count(Admission.NEW) for a in answers)

    async def test_answers_belong_to_their_receipts(self, storage: Storage) -> None:
        """The answer at i belongs to receipt i, also when some ids are known."""
        await admit(storage, receipt("m-2"), receipt("m-4"))
        answers = await admit(storage, *(receipt(f"m-{n}") for n in (5, 4, 3, 2, 1)))
        new, old = Admission.NEW, Admission.DUPLICATE
        assert [new, old, new, old, new] == list(answers)

    async def test_one_id_twice_in_a_batch(self, storage: Storage) -> None:
        """The first is new, a copy is a duplicate, another payload is a conflict."""
        other = receipt(payload_hash="b" * 64)
        assert [Admission.NEW, Admission.DUPLICATE, Admission.CONFLICT] == list(
            await admit(storage, receipt(), receipt(), other)
        )

    async def test_each_of_a_batch_is_judged_by_the_row(self, storage: Storage) -> None:
        """A conflict in front of it makes no conflict, and no duplicate (failure mode C14)."""
        other = receipt(payload_hash="b" * 64)
        async with transaction(storage) as gate:
            assert await gate.settle(receipt(), status=InboxStatus.DEAD, attempts=3, reason="boom")
        conflict, new, duplicate = Admission.CONFLICT, Admission.NEW, Admission.DUPLICATE
        assert [conflict, conflict, new, duplicate, conflict] == list(
            await admit(storage, other, other, receipt(), receipt(), other)
        )

    async def test_tenants_and_consumers_are_separate(self, storage: Storage) -> None:
        """The same id is new for every tenant and every consumer."""
        first = receipt()
        assert [Admission.NEW] * 3 == list(
            await admit(
                storage,
                first,
                replace(first, tenant_id="other"),
                replace(first, consumer_name="shipping"),
            )
        )

    async def test_ids_differ_byte_for_byte(self, storage: Storage) -> None:
        """Case, a trailing space and an accent make another id."""
        ids = ["a", "A", "a ", "\u00e1", "a\u0301"]
        assert [Admission.NEW] * 5 == list(await admit(storage, *map(receipt, ids)))
        assert [Admission.DUPLICATE] * 5 == list(await admit(storage, *map(receipt, ids)))

    async def test_an_id_may_contain_anything(self, storage: Storage) -> None:
        """Quotes and the like are parts of it, and it is known when it comes again."""
        for name in ("a'b", 'a"b', "a'b\"c", "a\\", "a%s:b", "PRIMARY", "'PRIMARY'"):
            assert [Admission.NEW] == list(await admit(storage, receipt(name)))
            assert [Admission.DUPLICATE] == list(await admit(storage, receipt(name)))

    async def test_the_longest_id_is_kept_whole(self, storage: Storage) -> None:
        """Ids of 255 characters that differ in the last one are two ids."""
        ids = ["é" * 254 + end for end in "xy"]
        assert [Admission.NEW] * 2 == list(await admit(storage, *map(receipt, ids)))
        assert [Admission.DUPLICATE] * 2 == list(await admit(storage, *map(receipt, ids)))

    async def test_the_same_id_with_another_payload_is_a_conflict(self, storage: Storage) -> None:
        """Another hash is a conflict; a missing hash is not."""
        await admit(storage, receipt())
        assert [Admission.CONFLICT] == await admit(storage, receipt(payload_hash="b" * 64))
        assert [Admission.DUPLICATE] == await admit(storage, receipt(payload_hash=None))

    @pytest.mark.parametrize("status", [InboxStatus.DEAD, InboxStatus.PARKED])
    async def test_a_replay_passes_once(self, storage: Storage, status: InboxStatus) -> None:
        """A DEAD or PARKED message that comes again is new, and then processed."""
        async with transaction(storage) as gate:
            assert await gate.settle(receipt(), status=status, attempts=3, reason="boom")
        assert status == await status_of(storage)
        assert [Admission.NEW] == await admit(storage, receipt())
        assert InboxStatus.PROCESSED == await status_of(storage)
        assert [Admission.DUPLICATE] == await admit(storage, receipt())

    async def test_concurrent_replays_pass_once(self, storage: Storage) -> None:
        """Of several replays of a DEAD message at the same time, one is new."""
        async with transaction(storage) as gate:
            await gate.settle(receipt(), status=InboxStatus.DEAD, attempts=3, reason="boom")

        async def replay() -> Admission:
            while True:
                try:
                    [answer] = await admit(storage, receipt())
                except Exception as error:
                    if not storage.is_transient(error):
                        raise
                else:
                    return answer

        answers = await asyncio.gather(*(replay() for _ in range(4)))
        assert 1 == answers.count(Admission.NEW)

    async def test_settle_spares_the_processed(self, storage: Storage) -> None:
        """What another instance has processed does not become DEAD."""
        await admit(storage, receipt())
        async with transaction(storage) as gate:
            dead = InboxStatus.DEAD
            assert not await gate.settle(receipt(), status=dead, attempts=1, reason="boom")
        assert InboxStatus.PROCESSED == await status_of(storage)

    async def test_attempts_are_durable(self, storage: Storage) -> None:
        """Attempts add up over transactions, and a counted message is still new."""
        for expected in (1, 2, 3):
            async with transaction(storage) as gate:
                assert expected == await gate.attempts(receipt(), add=1)
        async with transaction(storage) as gate:
            assert 3 == await gate.attempts(receipt())
        async with storage.unit_of_work(consumer_name="billing") as uow:
            assert not await uow.inbox.is_processed("m-1")
        assert [Admission.NEW] == await admit(storage, receipt())

    async def test_a_replay_has_its_attempts_before_it(self, storage: Storage) -> None:
        """A DEAD message that is replayed counts from one, each time."""
        for _ in range(2):
            async with transaction(storage) as gate:
                await gate.settle(receipt(), status=InboxStatus.DEAD, attempts=5, reason="boom")
            for expected in (1, 2, 3):
                async with transaction(storage) as gate:
                    assert expected == await gate.attempts(receipt(), add=1)
        assert [Admission.NEW] == await admit(storage, receipt())

    @pytest.mark.parametrize("status", [InboxStatus.DEAD, InboxStatus.PARKED])
    async def test_what_was_given_up_stays_so_until_it_is_processed(
        self, storage: Storage, status: InboxStatus
    ) -> None:
        """A late delivery may be the last: nobody would give the message up a second time."""
        async with transaction(storage) as gate:
            await gate.settle(receipt(), status=status, attempts=5, reason="boom")
        async with transaction(storage) as gate:
            await gate.attempts(receipt(), add=1)
        assert status == await status_of(storage)
        await admit(storage, receipt())
        assert InboxStatus.PROCESSED == await status_of(storage)

    async def test_complete_records_the_duration(self, storage: Storage) -> None:
        """The duration is in the record."""
        async with transaction(storage) as gate:
            await gate.admit([receipt()])
            await gate.complete([receipt()], duration_ms=1234)
        [record] = await storage.inbox.search(InboxFilter(consumer_name="billing"))
        assert 1234 == record.processing_duration_ms
        assert record.processed_at is not None
        assert record.processed_at.tzinfo is not None

    async def test_complete_notices_a_rollback(self, storage: Storage) -> None:
        """If the transaction was rolled back in between, complete raises."""
        async with storage.unit_of_work() as uow:
            gate = storage.gate(uow)
            await gate.admit([receipt()])
            await uow.rollback()
            with pytest.raises(TransactionMisuseError, match="0 of 1 rows"):
                await gate.complete([receipt()], duration_ms=1)

    async def test_complete_notices_a_commit(self, storage: Storage) -> None:
        """If the transaction was committed in between, complete raises."""
        async with storage.unit_of_work() as uow:
            gate = storage.gate(uow)
            await gate.admit([receipt()])
            await uow.commit()
            with pytest.raises(TransactionMisuseError, match="0 of 1 rows"):
                await gate.complete([receipt()], duration_ms=1)

    async def test_a_savepoint_undoes_what_failed_inside(self, storage: Storage) -> None:
        """An error inside the savepoint forgets the row, not the transaction."""
        async with transaction(storage) as gate:
            await gate.admit([receipt("m-1")])
            with pytest.raises(ZeroDivisionError):  # noqa: PT012  the block is what is tested
                async with gate.savepoint():
                    await gate.admit([receipt("m-2")])
                    raise ZeroDivisionError
        assert InboxStatus.PROCESSED == await status_of(storage, "m-1")
        assert await status_of(storage, "m-2") is None

    async def test_after_commit_is_called_after_the_commit_only(self, storage: Storage) -> None:
        """A commit calls back once, a savepoint and a rollback never."""
        called: list[str] = []
        async with transaction(storage, commit=False) as gate:
            gate.after_commit(lambda: called.append("rolled back"))
            await gate.admit([receipt()])
        async with storage.unit_of_work() as uow:
            gate = storage.gate(uow)
            async with gate.savepoint():
                await gate.admit([receipt()])
                gate.after_commit(lambda: called.append("committed"))
            assert [] == called
            await uow.commit()
            assert ["committed"] == called
            await gate.admit([receipt("m-2")])
            await uow.commit()
        assert ["committed"] == called

    async def test_bury_adds_a_letter_of_any_size(self, storage: Storage) -> None:
        """A dead letter may be larger than what applications may send; it is added once."""
        letter = MessageEnvelope(topic="orders.dead", body=b"x" * 2**20, content_type="text/plain")
        for _ in range(2):
            async with transaction(storage) as gate:
                await gate.bury(letter)
                await gate.bury(letter)
        found = await storage.outbox.get(letter.event_id)
        assert found is not None
        assert 2**20 == len(found.payload_bytes or b"")

    async def test_forget_lets_a_message_in_again(self, storage: Storage) -> None:
        """An operator can make a message new again, once."""
        await admit(storage, receipt())
        assert await storage.inbox.forget("m-1", consumer_name="billing")
        assert not await storage.inbox.forget("m-1", consumer_name="billing")
        assert [Admission.NEW] == await admit(storage, receipt())

    async def test_stats_and_search(self, storage: Storage) -> None:
        """Counts are per consumer and status; the newest record comes first."""
        assert [] == await storage.inbox.stats()
        await admit(storage, receipt("m-1"))
        await admit(storage, replace(receipt("m-1"), consumer_name="audit"))
        async with transaction(storage) as gate:
            await gate.settle(receipt("m-2"), status=InboxStatus.DEAD, attempts=3, reason="boom")
        audit, billing = await storage.inbox.stats()
        assert ("audit", {InboxStatus.PROCESSED: 1}) == (audit.consumer_name, audit.counts)
        assert {InboxStatus.PROCESSED: 1, InboxStatus.DEAD: 1} == billing.counts
        assert billing.oldest is not None
        assert billing.oldest.tzinfo is not None
        assert ["m-2", "m-1"] == [
            record.message_id
            for record in await storage.inbox.search(InboxFilter(consumer_name="billing"))
        ]
        [dead] = await storage.inbox.search(InboxFilter(status=InboxStatus.DEAD))
        assert ("m-2", 3, "boom") == (dead.message_id, dead.attempts, dead.reason)
        assert [] == await storage.inbox.search(InboxFilter(tenant_id="other"))
        assert 1 == len(await storage.inbox.search(limit=1))

    async def test_cleanup_removes_in_batches(self, storage: Storage) -> None:
        """All old records go, however small the batches; young ones stay."""
        await admit(storage, *(receipt(f"m-{n}") for n in range(7)))
        assert 0 == await storage.inbox.cleanup(older_than=timedelta(hours=1))
        told: list[int] = []
        assert 7 == await storage.inbox.cleanup(older_than=_ALL, batch_size=3, progress=told.append)
        assert [3, 6, 7] == told
        assert [] == await storage.inbox.search()

    async def test_cleanup_keeps_to_its_tenant_and_consumer(self, storage: Storage) -> None:
        """A narrowed clean-up leaves the others' records alone."""
        mine = receipt()
        theirs = replace(mine, tenant_id="other")
        third = replace(mine, consumer_name="shipping")
        await admit(storage, mine, theirs, third)
        assert 1 == await storage.inbox.cleanup(older_than=_ALL, tenant_id="other")
        assert 1 == await storage.inbox.cleanup(older_than=_ALL, consumer_name="shipping")
        assert ["m-1"] == [record.message_id for record in await storage.inbox.search()]
        async with storage.unit_of_work(consumer_name="billing") as uow:
            assert 0 == await uow.inbox.cleanup_old_records(older_than_days=1)

    async def test_cleanup_never_removes_the_dead_and_parked(self, storage: Storage) -> None:
        """Only what was processed, and counters of attempts, may be forgotten."""
        await admit(storage, receipt("processed"))
        async with transaction(storage) as gate:
            for status in (InboxStatus.DEAD, InboxStatus.PARKED):
                await gate.settle(receipt(status), status=status, attempts=1, reason="boom")
            await gate.attempts(receipt("counted"), add=1)
        assert 2 == await storage.inbox.cleanup(older_than=_ALL)
        assert {"DEAD", "PARKED"} == {r.message_id for r in await storage.inbox.search()}
