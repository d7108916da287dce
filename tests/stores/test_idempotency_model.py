"""The store beside a model of it: any sequence of calls has the outcome that the promises say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import delete, update

from semel.errors import IdempotencyConflictError
from semel.idempotency.keys import scoped_key
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import IdempotencyRecord
from semel.states import Answer, Claim, Verdict

DAY = timedelta(days=1)
ANSWER = Answer(status_code=200, headers=[], body=b"done")
KEYS = [scoped_key(name, method="POST", route="/", principal="ann") for name in ("a", "b")]

STEPS = st.one_of(
    st.tuples(st.just("claim"), st.integers(0, 1), st.sampled_from("fg")),
    st.tuples(st.sampled_from(["complete", "commit", "release", "renew"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["lapse", "expire", "cleanup", "forget"]), st.integers(0, 1)),
)


@dataclass
class Row:
    """What is known of a key."""

    token: str
    fingerprint: str
    state: str = "STARTED"
    leased: bool = True
    expired: bool = False


@dataclass
class Model:
    """What should happen."""

    rows: dict[int, Row] = field(default_factory=dict)

    def verdict(self, number: int, fingerprint: str) -> Verdict:
        row = self.rows.get(number)
        if row is None or row.expired:
            return Verdict.CLAIMED
        if row.fingerprint != fingerprint:
            return Verdict.MISMATCH
        if row.state == "COMPLETED":
            return Verdict.COMPLETED
        if row.leased:
            return Verdict.IN_FLIGHT
        return Verdict.CLAIMED if row.state == "STARTED" else Verdict.NOT_KEPT

    def holds(self, number: int, token: str) -> Row | None:
        row = self.rows.get(number)
        return row if row and row.token == token and row.state == "STARTED" else None


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, max_size=25))
async def test_any_sequence(storage: SqlAlchemyStorage, steps: list[tuple]) -> None:
    async with storage.engine.begin() as connection:
        await connection.execute(delete(IdempotencyRecord))
    model, claims = Model(), list[tuple[int, Claim]]()
    for name, *arguments in steps:
        if name == "claim":
            number, fingerprint = arguments
            expected = model.verdict(number, fingerprint)
            found = await storage.idempotency.claim(
                KEYS[number], fingerprint=fingerprint, lease=DAY, keep=DAY
            )
            assert expected == found.verdict
            assert (found.answer == ANSWER) is (expected is Verdict.COMPLETED)
            if expected is Verdict.CLAIMED:
                model.rows[number] = Row(found.token, fingerprint)
                claims.append((number, found))
        elif name in ("complete", "commit", "release", "renew"):
            if arguments[0] < len(claims):
                await _end(storage, model, name, *claims[arguments[0]])
        else:
            await _age(storage, model, name, arguments[0])
    assert {f"{row.token} {row.state}" for row in model.rows.values()} == {
        f"{record.token} {record.state}" for record in await storage.idempotency.search()
    }


async def _end(
    storage: SqlAlchemyStorage, model: Model, name: str, number: int, claim: Claim
) -> None:
    """Whoever has lost the key changes nothing."""
    row = model.holds(number, claim.token)
    if name == "release":
        assert (row is not None) is await storage.idempotency.release(claim.key, token=claim.token)
        if row is not None:
            del model.rows[number]
    elif name == "renew":
        assert (row is not None) is await storage.idempotency.renew(claim, lease=DAY)
        if row is not None:
            row.leased = True
    else:
        answer = ANSWER if name == "complete" else None
        if row is None:
            with pytest.raises(IdempotencyConflictError):
                await storage.idempotency.complete(claim, answer, keep=DAY)
        else:
            await storage.idempotency.complete(claim, answer, keep=DAY)
            row.state, row.expired = ("COMPLETED" if answer else "COMMITTED"), False


async def _age(storage: SqlAlchemyStorage, model: Model, name: str, number: int) -> None:
    row = model.rows.get(number)
    if name == "cleanup":
        gone = [known for known, old in model.rows.items() if old.expired]
        assert len(gone) == await storage.idempotency.cleanup(batch_size=1)
        for known in gone:
            del model.rows[known]
    elif name == "forget":
        assert (row is not None) is await storage.idempotency.release(KEYS[number])
        model.rows.pop(number, None)
    elif row is not None:
        column = "locked_until" if name == "lapse" else "expires_at"
        past = {column: datetime(2000, 1, 1, tzinfo=UTC)}
        hash_ = IdempotencyRecord.key_hash == KEYS[number].key_hash
        async with storage.engine.begin() as connection:
            await connection.execute(update(IdempotencyRecord).where(hash_).values(past))
        if name == "lapse":
            row.leased = False
        else:
            row.expired = True
