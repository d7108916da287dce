"""The inbox beside a model: one effect per tenant, consumer and message, however it comes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import select, update

from semel import ConsumerInbox, MessageEnvelope, TransactionMisuseError
from semel.hashing import payload_hash
from semel.processing import InboxResult, Outcome
from semel.protocols import UnitOfWork
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from semel.states import InboxStatus, Receipt
from tests.properties.world import Effect, Machine, World

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
PROCESSED, DEAD, PARKED, RECEIVED = "PROCESSED", "DEAD", "PARKED", "RECEIVED"

Key = tuple[str, str, str]

keys = st.tuples(
    st.sampled_from(["default", "acme"]), st.sampled_from(["mail", "stock"]), st.sampled_from("mn")
)
payloads = st.sampled_from([1, 1, 1, 2])
ends = st.sampled_from(["ok", "ok", "raise", "crash", "rollback", "commit"])


class Failed(Exception):  # noqa: N818
    """The handler's own."""


@dataclass
class Row:
    """What should be known of a message."""

    payload: int
    status: str = PROCESSED
    attempts: int = 1
    old: bool = False
    again: bool = False  # given up before, and counted since


class InboxMachine(Machine):
    """Deliveries that succeed, fail, crash, come together or again, and operators."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.rows: dict[Key, Row] = {}
        self.effects: Counter[str] = Counter()
        self.emitted: set[Key] = set()
        self.letters: set[tuple[Key, int]] = set()
        self.inboxes = {
            (tenant, consumer): ConsumerInbox(self.storage, consumer, tenant_id=tenant)
            for tenant in ("default", "acme")
            for consumer in ("mail", "stock")
        }

    def _outcome(self, key: Key, payload: int) -> Outcome:
        row = self.rows.get(key)
        if row is not None and row.payload != payload:
            return Outcome.CONFLICT
        if row is None or row.status != PROCESSED:
            return Outcome.PROCESSED
        return Outcome.DUPLICATE

    def _expect(self, key: Key, payload: int, found: InboxResult) -> None:
        expected = self._outcome(key, payload)
        assert expected == found.outcome, found.error
        if expected is Outcome.PROCESSED:
            row = self.rows.setdefault(key, Row(payload))
            row.status, row.old = PROCESSED, False
            self.effects[_what(key)] += 1
            self.emitted.add(key)
            assert payload == found.result
        elif expected is Outcome.CONFLICT:
            self.letters.add((key, payload))

    async def _deliver(
        self, key: Key, payload: int, end: str = "ok", session: Any = None
    ) -> InboxResult:
        async def handle(payload: int, uow: UnitOfWork) -> int:
            uow.session.add(Effect(what=_what(key)))
            await uow.session.flush()
            await uow.outbox.add("effects", payload, key=key[2])
            if end == "raise":
                raise Failed
            if end == "crash":
                raise asyncio.CancelledError
            if end == "rollback":
                await uow.session.rollback()
            if end == "commit":
                await uow.session.commit()
            return payload

        inbox = self.inboxes[key[:2]]
        return await inbox.process(key[2], "orders", "Placed", payload, handle, session=session)

    @rule(key=keys, payload=payloads, end=ends)
    def deliver(self, key: Key, payload: int, end: str) -> None:
        """Whatever goes wrong in the handler undoes everything, the inbox row included."""
        if end == "ok" or self._outcome(key, payload) is not Outcome.PROCESSED:
            self._expect(key, payload, self.run(self._deliver(key, payload, end)))
            return
        error = {"raise": Failed, "crash": asyncio.CancelledError}.get(end, TransactionMisuseError)
        with pytest.raises(error):
            self.run(self._deliver(key, payload, end))

    @rule(
        key=keys,
        payload=payloads,
        ends=st.lists(ends.filter(lambda e: e != "crash"), min_size=2, max_size=3),
    )
    def deliver_at_once(self, key: Key, payload: int, ends: list[str]) -> None:
        """Of any number of instances one executes it, if one of them can."""

        async def work() -> Sequence[Any]:
            calls = [self._deliver(key, payload, end) for end in ends]
            return await asyncio.gather(*calls, return_exceptions=True)

        results = self.run(work())
        assert {type(r) for r in results} <= {InboxResult, Failed, TransactionMisuseError}
        done = [result for result in results if isinstance(result, InboxResult)]
        assert done or "ok" not in ends
        # In the order in which they took their turns: who executed, then who came too late.
        for result in sorted(done, key=lambda r: r.outcome is not Outcome.PROCESSED):
            self._expect(key, payload, result)

    @rule(key=keys, payload=payloads, raises=st.booleans(), commits=st.booleans())
    def join(self, key: Key, payload: int, raises: bool, commits: bool) -> None:
        """In the caller's transaction: its owner decides, and may go on after a failure."""

        async def work() -> InboxResult | None:
            async with self.storage.unit_of_work(tenant_id=key[0]) as uow:
                uow.session.add(Effect(what="caller"))
                try:
                    end = "raise" if raises else "ok"
                    found = await self._deliver(key, payload, end, uow.session)
                except Failed:
                    found = None
                if commits:
                    await uow.commit()
            return found

        expected = self._outcome(key, payload)
        found = self.run(work())
        assert (found is None) is (raises and expected is Outcome.PROCESSED)
        if commits:
            self.effects["caller"] += 1
            if found is not None:
                self._expect(key, payload, found)
        elif found is not None:
            assert expected == found.outcome, found.error

    @rule(
        key=keys,
        messages=st.lists(st.tuples(st.sampled_from("mn"), payloads), min_size=1, max_size=4),
    )
    def deliver_batch(self, key: Key, messages: list[tuple[str, int]]) -> None:
        """With one transaction for all; what comes twice in it is a duplicate, too."""
        tenant, consumer, _ = key
        envelopes = [
            MessageEnvelope(topic="orders", event_id=name, payload=payload, tenant_id=tenant)
            for name, payload in messages
        ]

        async def handle(payload: int, uow: UnitOfWork) -> int:
            cause = uow.cause
            uow.session.add(Effect(what=_what((tenant, consumer, cause.event_id))))
            await uow.outbox.add("effects", payload, key=cause.event_id)
            return payload

        results = self.run(self.inboxes[tenant, consumer].process_batch(envelopes, handle))
        for (name, payload), result in zip(messages, results, strict=True):
            self._expect((tenant, consumer, name), payload, result)

    @rule(key=keys, payload=payloads, status=st.sampled_from([DEAD, PARKED, RECEIVED]))
    def give_up(self, key: Key, payload: int, status: str) -> None:
        """Or count an attempt. What was processed stays so."""
        receipt = Receipt(
            tenant_id=key[0],
            consumer_name=key[1],
            message_id=key[2],
            event_type="Placed",
            payload_hash=payload_hash(payload),
        )

        async def work() -> Any:
            async with self.storage.unit_of_work(tenant_id=key[0]) as uow:
                gate = self.storage.gate(uow)
                if status == RECEIVED:
                    done: Any = await gate.attempts(receipt, add=1)
                else:
                    ended = InboxStatus(status)
                    done = await gate.settle(receipt, status=ended, attempts=5, reason="no")
                await uow.commit()
            return done

        row = self.rows.get(key)
        found = self.run(work())
        if row is not None and row.status == PROCESSED:
            assert (row.attempts if status == RECEIVED else False) == found
            return
        row = self.rows.setdefault(key, Row(payload, RECEIVED, attempts=0))
        if status == RECEIVED:
            row.attempts = 1 + (row.attempts if row.again or row.status == RECEIVED else 0)
            row.again = row.status != RECEIVED
            assert row.attempts == found
        else:
            row.status, row.attempts, row.again = status, 5, False
            assert found is True
        row.old = False

    @rule(key=keys)
    def forget(self, key: Key) -> None:
        """An operator lets the message be processed again."""
        known = self.rows.pop(key, None) is not None
        work = self.storage.inbox.forget(key[2], consumer_name=key[1], tenant_id=key[0])
        assert known is self.run(work)

    @rule(key=keys)
    def time_passes(self, key: Key) -> None:
        self.run(self._age(key))
        if key in self.rows:
            self.rows[key].old = True

    async def _age(self, key: Key) -> None:
        record = InboxRecord
        same = (record.tenant_id, record.consumer_name, record.message_id)
        where = [column == value for column, value in zip(same, key, strict=True)]
        async with self.storage.engine.begin() as connection:
            await connection.execute(update(record).where(*where).values(processed_at=LONG_AGO))

    @rule()
    def cleanup(self) -> None:
        """After the retention time; what is DEAD or PARKED waits for an operator."""
        old = [k for k, r in self.rows.items() if r.old and r.status in (PROCESSED, RECEIVED)]
        hour = timedelta(hours=1)
        assert len(old) == self.run(self.storage.inbox.cleanup(older_than=hour, batch_size=1))
        for key in old:
            del self.rows[key]

    @invariant()
    def the_tables_are_as_they_should_be(self) -> None:
        """One effect per execution; one event per message and one letter per conflict, for ever."""
        expected = {(*key, row.status, row.attempts) for key, row in self.rows.items()}
        found, effects, topics = self.run(self._look())
        assert expected == found
        assert self.effects == effects
        told = (topics["effects"], topics["orders.dead"])
        assert (len(self.emitted), len(self.letters)) == told

    async def _look(self) -> tuple[set[Any], Counter[str], Counter[str]]:
        record = InboxRecord.__table__.c
        columns = ("tenant_id", "consumer_name", "message_id", "status", "attempts")
        async with self.storage.engine.connect() as connection:
            rows = {tuple(row) for row in await connection.execute(select(record[*columns]))}
            effects = Counter(await connection.scalars(select(Effect.what)))
            topics = Counter(await connection.scalars(select(OutboxRecord.topic)))
        return rows, effects, topics


def _what(key: Key) -> str:
    return "/".join(key)
