"""What an `IdempotencyStore` promises."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from semel.errors import ConfigurationError, IdempotencyConflictError
from semel.idempotency.keys import scoped_key
from semel.protocols import Storage
from semel.states import Answer, Claim, IdempotencyKey, IdempotencyState, Verdict

ANSWER = Answer(status_code=201, headers=[("content-type", "text/plain")], body=b"\x00\xffdone")
DAY = timedelta(days=1)
NOTHING = timedelta(0)


def key(name: str = "k-1", **scope: str) -> IdempotencyKey:
    """Return a key of Ann's."""
    given = {"method": "POST", "route": "/orders", "principal": "ann", "tenant_id": "default"}
    return scoped_key(name, **(given | scope))


async def claim(
    storage: Storage,
    name: str = "k-1",
    *,
    fingerprint: str = "f",
    lease: timedelta = DAY,
    keep: timedelta = DAY,
    **scope: str,
) -> Claim:
    """Claim a key in a transaction of its own."""
    return await storage.idempotency.claim(
        key(name, **scope), fingerprint=fingerprint, lease=lease, keep=keep
    )


async def completed(storage: Storage, name: str = "k-1", **options: timedelta) -> Claim:
    """Return a claim that was completed."""
    held = await claim(storage, name)
    await storage.idempotency.complete(held, ANSWER, **({"keep": DAY} | options))
    return held


async def state(storage: Storage, name: str = "k-1") -> str | None:
    """Return the state of a key, or None."""
    record = await storage.idempotency.get(key(name))
    return None if record is None else record.state


class IdempotencyStoreContract:
    """Subclass, and provide a fixture `storage` with empty tables."""

    async def test_one_of_many_gets_the_key(self, storage: Storage) -> None:
        """The others are told that it is in flight."""
        claims = await asyncio.gather(*(claim(storage) for _ in range(20)))
        verdicts = Counter(found.verdict for found in claims)
        assert {Verdict.CLAIMED: 1, Verdict.IN_FLIGHT: 19} == verdicts

    async def test_a_completed_key_tells_its_answer(self, storage: Storage) -> None:
        await completed(storage)
        found = await claim(storage)
        assert (Verdict.COMPLETED, ANSWER) == (found.verdict, found.answer)

    async def test_another_fingerprint(self, storage: Storage) -> None:
        """Whatever the state of the key."""
        held = await claim(storage)
        assert Verdict.MISMATCH == (await claim(storage, fingerprint="g")).verdict
        await storage.idempotency.complete(held, None, keep=DAY)
        assert Verdict.MISMATCH == (await claim(storage, fingerprint="g")).verdict
        await completed(storage, "k-2")
        assert Verdict.MISMATCH == (await claim(storage, "k-2", fingerprint="g")).verdict
        await claim(storage, "k-3", lease=NOTHING)
        assert Verdict.MISMATCH == (await claim(storage, "k-3", fingerprint="g")).verdict

    @pytest.mark.parametrize(
        "other",
        [{"tenant_id": "acme"}, {"principal": "Ann"}, {"method": "PATCH"}, {"route": "/orders "}],
        ids=lambda other: next(iter(other)),
    )
    async def test_scopes_are_apart(self, storage: Storage, other: dict[str, str]) -> None:
        """Byte for byte."""
        assert Verdict.CLAIMED == (await claim(storage)).verdict
        assert Verdict.CLAIMED == (await claim(storage, **other)).verdict  # type: ignore[arg-type]

    async def test_a_lease_that_is_over_is_taken_over_once(self, storage: Storage) -> None:
        """With a new token; the old one ends nothing any more."""
        old = await claim(storage, lease=NOTHING)
        claims = await asyncio.gather(*(claim(storage) for _ in range(10)))
        [new] = [found for found in claims if found.verdict is Verdict.CLAIMED]
        assert 9 == sum(found.verdict is Verdict.IN_FLIGHT for found in claims)
        assert new.token != old.token
        with pytest.raises(IdempotencyConflictError):
            await storage.idempotency.complete(old, ANSWER, keep=DAY)
        assert not await storage.idempotency.release(old.key, token=old.token)
        assert not await storage.idempotency.renew(old, lease=DAY)
        assert "STARTED" == await state(storage)
        await storage.idempotency.complete(new, ANSWER, keep=DAY)

    async def test_a_renewed_lease_lasts(self, storage: Storage) -> None:
        held = await claim(storage, lease=NOTHING)
        assert await storage.idempotency.renew(held, lease=DAY)
        assert Verdict.IN_FLIGHT == (await claim(storage)).verdict

    async def test_committed_is_never_taken_over(self, storage: Storage) -> None:
        """In flight while its lease runs, then for good without an answer."""
        running = await claim(storage)
        await storage.idempotency.complete(running, None, keep=DAY)
        assert Verdict.IN_FLIGHT == (await claim(storage)).verdict
        over = await claim(storage, "k-2", lease=NOTHING)
        await storage.idempotency.complete(over, None, keep=DAY)
        assert Verdict.NOT_KEPT == (await claim(storage, "k-2")).verdict
        assert not await storage.idempotency.release(over.key, token=over.token)

    async def test_an_expired_key_is_as_good_as_unknown(self, storage: Storage) -> None:
        """Even for another request; its old answer is gone."""
        await completed(storage, keep=NOTHING)
        claims = await asyncio.gather(*(claim(storage, fingerprint="g") for _ in range(5)))
        assert 1 == sum(found.verdict is Verdict.CLAIMED for found in claims)
        record = await storage.idempotency.get(key())
        assert record is not None
        assert ("STARTED", None, None) == (record.state, record.status_code, record.body)

    async def test_a_key_lives_at_least_as_long_as_its_lease(self, storage: Storage) -> None:
        await claim(storage, keep=timedelta(microseconds=1))
        assert Verdict.IN_FLIGHT == (await claim(storage)).verdict

    async def test_a_released_key_may_be_claimed_again(self, storage: Storage) -> None:
        """By whoever holds it, while it is STARTED; by an operator always."""
        held = await claim(storage)
        assert not await storage.idempotency.release(held.key, token="another")  # noqa: S106
        assert await storage.idempotency.release(held.key, token=held.token)
        assert not await storage.idempotency.release(held.key, token=held.token)
        assert Verdict.CLAIMED == (await claim(storage, fingerprint="g")).verdict
        done = await completed(storage, "k-2")
        assert not await storage.idempotency.release(done.key, token=done.token)
        assert await storage.idempotency.release(done.key)
        assert not await storage.idempotency.release(done.key)

    async def test_what_an_actor_forgets_is_in_the_audit(self, storage: Storage) -> None:
        """Once, and only if there was something to forget."""
        await completed(storage)
        for expected in (True, False):
            assert expected is await storage.idempotency.release(key(), actor="op")
        [row] = await storage.audit.search()
        assert ("op", "idempotency.release", "POST /orders of ann") == (
            row.actor,
            row.action,
            row.target,
        )

    async def test_an_answer_is_part_of_the_sessions_transaction(self, storage: Storage) -> None:
        """It is there if and only if that commits."""
        held = await claim(storage)
        async with storage.unit_of_work() as uow:
            await storage.idempotency.complete(held, ANSWER, keep=DAY, session=uow.session)
        assert "STARTED" == await state(storage)
        async with storage.unit_of_work() as uow:
            await storage.idempotency.complete(held, ANSWER, keep=DAY, session=uow.session)
            await uow.commit()
        assert "COMPLETED" == await state(storage)

    async def test_a_lost_key_stops_the_sessions_transaction(self, storage: Storage) -> None:
        """The effects of one who lost it must not commit."""
        old = await claim(storage, lease=NOTHING)
        await claim(storage)
        async with storage.unit_of_work() as uow:
            await uow.outbox.add("orders", {"n": 1})
            with pytest.raises(IdempotencyConflictError):
                await storage.idempotency.complete(old, ANSWER, keep=DAY, session=uow.session)

    async def test_a_claim_in_a_session_is_seen_after_its_commit(self, storage: Storage) -> None:
        """A rollback forgets it; another one with the same key waits for the outcome."""
        store = storage.idempotency
        options = {"fingerprint": "f", "lease": DAY, "keep": DAY}
        async with storage.unit_of_work() as uow:
            held = await store.claim(key(), **options, session=uow.session)  # type: ignore[arg-type]
            assert Verdict.CLAIMED == held.verdict
        assert await state(storage) is None

        async def other() -> Verdict:
            async with storage.unit_of_work() as uow:
                found = await store.claim(key(), **options, session=uow.session)  # type: ignore[arg-type]
                return found.verdict

        async with storage.unit_of_work() as uow:
            held = await store.claim(key(), **options, session=uow.session)  # type: ignore[arg-type]
            waiting = asyncio.create_task(other())
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done
            await store.complete(held, ANSWER, keep=DAY, session=uow.session)
            await uow.commit()
        assert Verdict.COMPLETED == await asyncio.wait_for(waiting, 30)

    async def test_search(self, storage: Storage) -> None:
        """Newest first, by any part of the scope, in pages."""
        for number in range(5):
            await claim(storage, f"k-{number}", route=f"/r-{number % 2}")
        await claim(storage, "other", tenant_id="acme", principal="bob")
        store = storage.idempotency
        found = await store.search(tenant_id="default")
        assert {key(f"k-{n}").key_hash for n in range(5)} == {row.key_hash for row in found}
        times = [row.created_at for row in found]
        assert sorted(times, reverse=True) == times
        for size in (1, 2, 5):
            pages, place = [], None
            while True:
                page = await store.search(tenant_id="default", before=place, limit=size)
                pages += [row.key_hash for row in page]
                if (place := page.next) is None:
                    break
            # However many were made in one moment of the database's clock.
            assert [row.key_hash for row in found] == pages
        with pytest.raises(ConfigurationError, match="`next` of a page"):
            await store.search(before="yesterday")
        assert 2 == len(await store.search(route="/r-1"))
        assert 1 == len(await store.search(principal="bob"))
        assert 0 == len(await store.search(state=IdempotencyState.COMPLETED))
        assert 6 == len(await store.search(state=IdempotencyState.STARTED))
        assert await store.get(key("unknown")) is None

    async def test_cleanup_deletes_what_has_expired(self, storage: Storage) -> None:
        """In batches, of one tenant or all; nothing else."""
        for number in range(5):
            await completed(storage, f"old-{number}", keep=NOTHING)
        await completed(storage, "kept")
        await claim(storage, "running")
        await claim(storage, "other", tenant_id="acme", lease=NOTHING, keep=NOTHING)
        assert 1 == await storage.idempotency.cleanup(tenant_id="acme")
        assert 5 == await storage.idempotency.cleanup(batch_size=2)
        assert 0 == await storage.idempotency.cleanup()
        assert ("COMPLETED", "STARTED") == (
            await state(storage, "kept"),
            await state(storage, "running"),
        )
