"""Idempotency keys beside a model: one execution per key, whoever loses it changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import and_, select, update

from semel.errors import IdempotencyConflictError
from semel.idempotency.keys import scoped_key
from semel.sqlalchemy.tables import IdempotencyRecord
from semel.states import Answer, Claim, IdempotencyKey, Verdict
from tests.properties.world import Effect, Machine, World

DAY = timedelta(days=1)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

#: One key of three callers of two tenants, and another key of one of them.
KEYS = {
    f"{tenant}/{principal}/{name}": scoped_key(
        name, method="POST", route="/", principal=principal, tenant_id=tenant
    )
    for tenant, principal, name in (
        ("default", "ann", "k"),
        ("default", "bob", "k"),
        ("acme", "ann", "k"),
        ("default", "ann", "K"),
    )
}
names = st.sampled_from(list(KEYS))
bodies = st.sampled_from("fffg")
ends = st.sampled_from(["answer", "no answer", "raise", "crash", "crash"])


@dataclass
class Row:
    """What should be known of a key."""

    token: str
    fingerprint: str
    state: str = "STARTED"
    leased: bool = True
    expired: bool = False
    answer: Answer | None = None


def _answer(status: int, body: bytes = b"") -> Answer:
    return Answer(status_code=status, headers=[], body=body)


class IdempotencyMachine(Machine):
    """Calls that end, fail, crash, stall past their lease, come again or with another body."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.rows: dict[str, Row] = {}
        self.calls: list[tuple[str, Claim]] = []
        self.effects: Counter[str] = Counter()

    def _verdict(self, name: str, body: str) -> Verdict:
        row = self.rows.get(name)
        if row is None or row.expired:
            return Verdict.CLAIMED
        if row.fingerprint != body:
            return Verdict.MISMATCH
        if row.state == "COMPLETED":
            return Verdict.COMPLETED
        if row.leased:
            return Verdict.IN_FLIGHT
        return Verdict.CLAIMED if row.state == "STARTED" else Verdict.NOT_KEPT

    def _held(self, name: str, claim: Claim) -> Row | None:
        row = self.rows.get(name)
        return row if row and row.token == claim.token and row.state == "STARTED" else None

    async def _claim(self, name: str, body: str, session: Any = None) -> Claim:
        return await self.storage.idempotency.claim(
            KEYS[name], fingerprint=body, lease=DAY, keep=DAY, session=session
        )

    @rule(name=names, body=bodies, end=ends)
    def call(self, name: str, body: str, end: str) -> None:
        """A request: claim, then the effect and its answer in one transaction."""
        expected = self._verdict(name, body)
        found = self.run(self._claim(name, body))
        assert expected == found.verdict
        if expected is Verdict.CLAIMED:
            self.rows[name] = Row(found.token, body)
            self.calls.append((name, found))
            self._finish(name, found, end)
        elif expected is Verdict.COMPLETED:
            assert self.rows[name].answer == found.answer

    @rule(number=st.integers(0, 5), end=ends)
    def go_on(self, number: int, end: str) -> None:
        """A call that was thought dead, or ended before, ends now."""
        if self.calls:
            self._finish(*self.calls[-1 - number % len(self.calls)], end)

    def _finish(self, name: str, claim: Claim, end: str) -> None:
        row = self._held(name, claim)
        if end == "raise":
            released = self.run(self.storage.idempotency.release(claim.key, token=claim.token))
            assert (row is not None) is released
            if row is not None:
                del self.rows[name]
        elif end in ("answer", "no answer"):
            body = claim.token.encode()
            answer = _answer(200, body) if end == "answer" else None
            self.run(self._execute(name, claim, answer, lost=row is None))
            if row is not None:
                row.state = "COMPLETED" if answer else "COMMITTED"
                row.answer, row.expired = answer, False
                self.effects[name] += 1

    async def _execute(self, name: str, claim: Claim, answer: Answer | None, *, lost: bool) -> None:
        async with self.storage.unit_of_work() as uow:
            uow.session.add(Effect(what=name))
            work = self.storage.idempotency.complete(claim, answer, keep=DAY, session=uow.session)
            if lost:
                with pytest.raises(IdempotencyConflictError):
                    await work
            else:
                await work
                await uow.commit()

    @rule(name=names, body=bodies, commits=st.booleans())
    def call_within_a_transaction(self, name: str, body: str, commits: bool) -> None:
        """Claim, effect and answer are one transaction; a rollback forgets the key."""

        async def work() -> Claim:
            async with self.storage.unit_of_work() as uow:
                found = await self._claim(name, body, uow.session)
                if found.verdict is Verdict.CLAIMED:
                    uow.session.add(Effect(what=name))
                    await self.storage.idempotency.complete(
                        found, _answer(201), keep=DAY, session=uow.session
                    )
                if commits:
                    await uow.commit()
            return found

        expected = self._verdict(name, body)
        found = self.run(work())
        assert expected == found.verdict
        if expected is Verdict.CLAIMED and commits:
            self.effects[name] += 1
            self.rows[name] = Row(found.token, body, "COMPLETED", answer=_answer(201))

    @rule(name=names, body=bodies, number=st.integers(2, 4))
    def calls_at_once(self, name: str, body: str, number: int) -> None:
        """One of them gets the key; the others hear that it is in use."""

        async def work() -> list[Claim]:
            return await asyncio.gather(*(self._claim(name, body) for _ in range(number)))

        expected = self._verdict(name, body)
        found = self.run(work())
        if expected is not Verdict.CLAIMED:
            assert {expected} == {claim.verdict for claim in found}
            return
        claimed = [claim for claim in found if claim.verdict is Verdict.CLAIMED]
        assert 1 == len(claimed)
        assert number - 1 == sum(claim.verdict is Verdict.IN_FLIGHT for claim in found)
        [mine] = claimed
        self.rows[name] = Row(mine.token, body)
        self.calls.append((name, mine))

    @rule(number=st.integers(0, 5))
    def renew(self, number: int) -> None:
        if self.calls:
            name, claim = self.calls[-1 - number % len(self.calls)]
            row = self._held(name, claim)
            assert (row is not None) is self.run(self.storage.idempotency.renew(claim, lease=DAY))
            if row is not None:
                row.leased = True

    @rule(name=names, column=st.sampled_from(["locked_until", "locked_until", "expires_at"]))
    def time_passes(self, name: str, column: str) -> None:
        """The lease runs out, or the time for which the answer is kept."""
        self.run(self._age(KEYS[name], column))
        if (row := self.rows.get(name)) is not None:
            row.leased = row.leased and column != "locked_until"
            row.expired = row.expired or column == "expires_at"

    async def _age(self, key: IdempotencyKey, column: str) -> None:
        record = IdempotencyRecord
        scope = ("tenant_id", "principal", "method", "route", "key_hash")
        same = and_(*(getattr(record, part) == getattr(key, part) for part in scope))
        async with self.storage.engine.begin() as connection:
            await connection.execute(update(record).where(same).values({column: LONG_AGO}))

    @rule()
    def cleanup(self) -> None:
        gone = [name for name, row in self.rows.items() if row.expired]
        assert len(gone) == self.run(self.storage.idempotency.cleanup(batch_size=1))
        for name in gone:
            del self.rows[name]

    @rule(name=names)
    def forget(self, name: str) -> None:
        """An operator lets the key be used again."""
        known = self.rows.pop(name, None) is not None
        assert known is self.run(self.storage.idempotency.release(KEYS[name], actor="ops"))

    @invariant()
    def the_tables_are_as_they_should_be(self) -> None:
        expected = {(KEYS[name], row.token, row.state) for name, row in self.rows.items()}
        found, effects = self.run(self._look())
        assert expected == found
        assert self.effects == effects

    async def _look(self) -> tuple[set[Any], Counter[str]]:
        records = await self.storage.idempotency.search()
        async with self.storage.engine.connect() as connection:
            effects = Counter(await connection.scalars(select(Effect.what)))
        scope = ("tenant_id", "principal", "method", "route", "key_hash", "key_prefix")
        return {
            (IdempotencyKey(**{part: getattr(r, part) for part in scope}), r.token, r.state)
            for r in records
        }, effects
