"""What a storage must do so that projectors share the work."""

from __future__ import annotations

import asyncio

from semel.protocols import Storage
from semel.relay import Instance
from semel.testing.contracts.rows import PARTITIONS, instance


async def claim_all(storage: Storage, projector: Instance) -> dict[int, int]:
    """Claim every free partition; return the epochs."""
    return {claim.partition: claim.epoch for claim in await storage.relay.claim(projector, 64)}


class LeaseContract:
    """Instances and leases; part of `RelayStoreContract`."""

    async def test_claims_are_exclusive(self, storage: Storage, another: Storage) -> None:
        """Whoever claims at the same time, nobody gets what somebody has (failure mode R06)."""
        one, two = instance("one"), instance("two")
        claims = await asyncio.gather(
            *(store.relay.claim(who, 20) for store, who in [(storage, one), (another, two)] * 2)
        )
        taken = [claim.partition for batch in claims for claim in batch]
        assert len(taken) == len(set(taken))
        rest = await storage.relay.claim(one, 64)
        assert set(PARTITIONS) == {*taken, *(claim.partition for claim in rest)}
        assert [] == await another.relay.claim(two, 64)
        held = [set((await storage.relay.heartbeat(who)).leases) for who in (one, two)]
        assert set(PARTITIONS) == held[0] | held[1]
        assert set() == held[0] & held[1]

    async def test_a_claim_is_limited(self, storage: Storage) -> None:
        assert 3 == len(await storage.relay.claim(instance(), 3))
        assert [] == await storage.relay.claim(instance(), 0)

    async def test_each_claim_raises_the_epoch(self, storage: Storage) -> None:
        one, two = instance("one"), instance("two")
        first = await claim_all(storage, one)
        await storage.relay.release(one, [5])
        [claim] = await storage.relay.claim(two, 64)
        assert (5, False) == (claim.partition, claim.from_dead_owner)
        assert first[5] < claim.epoch
        assert claim.epoch == (await storage.relay.heartbeat(two)).leases[5]

    async def test_an_expired_lease_is_taken_over(self, storage: Storage, another: Storage) -> None:
        """The database's clock decides; the successor learns that the owner died (R02)."""
        dead = instance("dead", seconds=0.0)
        old = await claim_all(storage, dead)
        claims = await another.relay.claim(instance("heir"), 64)
        assert set(PARTITIONS) == {claim.partition for claim in claims}
        assert all(claim.from_dead_owner for claim in claims)
        assert all(old[claim.partition] < claim.epoch for claim in claims)
        assert {} == (await storage.relay.heartbeat(dead)).leases

    async def test_a_heartbeat_renews_all_leases(self, storage: Storage) -> None:
        short = instance("one", seconds=0.0)
        await claim_all(storage, short)
        standing = await storage.relay.heartbeat(instance("one", seconds=60.0))
        assert set(PARTITIONS) == set(standing.leases)
        assert [] == await storage.relay.claim(instance("two"), 64)

    async def test_released_partitions_are_free_at_once(self, storage: Storage) -> None:
        """Only one's own can be released."""
        one, two = instance("one"), instance("two")
        await claim_all(storage, one)
        await storage.relay.release(two, PARTITIONS)
        await storage.relay.release(one, [])
        assert [] == await storage.relay.claim(two, 64)
        await storage.relay.release(one, [1, 2])
        assert {1, 2} == set(await claim_all(storage, two))

    async def test_retiring_gives_everything_back(self, storage: Storage) -> None:
        one, two = instance("one"), instance("two")
        for projector in (one, two):
            await storage.relay.heartbeat(projector)
        await claim_all(storage, one)
        assert 2 == (await storage.relay.heartbeat(two)).instances
        await storage.relay.retire(one)
        assert 1 == (await storage.relay.heartbeat(two)).instances
        assert 64 == len(await claim_all(storage, two))

    async def test_instances_are_counted_per_scope(self, storage: Storage) -> None:
        """Dead ones are not counted, so that the living share the work."""
        await storage.relay.heartbeat(instance("acme", scope="acme"))
        await storage.relay.heartbeat(instance("one"))
        assert 2 == (await storage.relay.heartbeat(instance("two"))).instances
        assert 1 == (await storage.relay.heartbeat(instance("two", seconds=0.0))).instances

    async def test_overlapping_scopes_exclude_each_other(self, storage: Storage) -> None:
        """All tenants and one tenant never run at once; the one that waits learns why."""
        everyone, acme, other = instance("*"), instance("a", scope="acme"), instance("o", scope="o")
        await claim_all(storage, acme)
        await claim_all(storage, other)
        assert [] == await storage.relay.claim(everyone, 64)
        assert (await storage.relay.heartbeat(everyone)).conflict in ("acme", "o")
        assert (await storage.relay.heartbeat(acme)).conflict is None
        await storage.relay.retire(acme)
        await storage.relay.retire(other)
        assert (await storage.relay.heartbeat(everyone)).conflict is None
        assert 64 == len(await claim_all(storage, everyone))
        assert [] == await storage.relay.claim(acme, 64)

    async def test_overlapping_scopes_that_start_together(
        self, storage: Storage, another: Storage
    ) -> None:
        """One of them gets leases, never both."""
        for _ in range(5):
            everyone, acme = instance("*"), instance("a", scope="acme")
            counts = [
                len(claims)
                for claims in await asyncio.gather(
                    storage.relay.claim(everyone, 64), another.relay.claim(acme, 64)
                )
            ]
            assert [0, 64] == sorted(counts)
            await storage.relay.retire(everyone)
            await storage.relay.retire(acme)
