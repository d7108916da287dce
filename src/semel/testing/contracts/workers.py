"""What a storage tells of projectors and their leases."""

from __future__ import annotations

import asyncio

import pytest

from semel.errors import ConfigurationError
from semel.operations import AuditFilter
from semel.protocols import Storage
from semel.relay import Failure
from semel.testing.contracts.rows import add, instance, unsent


class WorkerStoreContract:
    """Give it a fixture `storage` with empty tables."""

    async def test_workers_tell_what_their_last_heartbeat_told(self, storage: Storage) -> None:
        """With what they own; a later heartbeat replaces what was told before."""
        assert [] == await storage.workers.workers()
        await storage.relay.heartbeat(instance(detail={"host": "h", "pid": 1, "published": 0}))
        since = "2026-01-02T03:04:05+00:00"
        told = {
            "host": "h",
            "pid": 1,
            "lease_seconds": 60.0,
            "published": 7,
            "published_per_second": 3.5,
            "failed": 2,
            "waiting_for": None,
            "breakers": [{"topic": "t", "since": since, "trips": 4, "error": "no such topic"}],
        }
        projector = instance(detail=told)
        await storage.relay.heartbeat(projector)
        claimed = {claim.partition for claim in await storage.relay.claim(projector, 3)}
        [worker] = await storage.workers.workers()
        assert ("one", "*", "h", 1, 7, 3.5, 2) == (
            worker.id,
            worker.scope,
            worker.host,
            worker.pid,
            worker.published,
            worker.published_per_second,
            worker.failed,
        )
        assert claimed == set(worker.partitions)
        assert worker.is_alive
        assert 0 <= worker.heartbeat_seconds < 60
        [breaker] = worker.breakers
        assert ("t", 4, "no such topic", since) == (
            breaker.topic,
            breaker.trips,
            breaker.error,
            breaker.since.isoformat(),
        )

    async def test_leases(self, storage: Storage) -> None:
        projector = instance()
        await storage.relay.heartbeat(projector)
        claimed = {c.partition: c.epoch for c in await storage.relay.claim(projector, 2)}
        leases = await storage.workers.leases()
        assert list(range(64)) == [lease.partition for lease in leases]
        held = {lease.partition: lease for lease in leases if lease.is_held}
        assert claimed == {number: lease.epoch for number, lease in held.items()}
        for lease in held.values():
            assert ("*", "one") == (lease.scope, lease.owner)
            assert 0 < (lease.expires_seconds or 0) <= 60
            assert lease.expires_at is not None

    async def test_a_released_lease_is_fenced_at_once_and_free_when_its_time_is_over(
        self, storage: Storage
    ) -> None:
        """The owner can write nothing more, but until then it may still be publishing."""
        await add(storage, "a", key="k")
        [entry] = await unsent(storage)
        owner, other = instance("owner", seconds=3.0), instance("other", seconds=60.0)
        await storage.relay.heartbeat(owner)
        epochs = {c.partition: c.epoch for c in await storage.relay.claim(owner, 64)}
        taken = await storage.workers.release_leases(partition=entry.partition, actor="ann")
        assert 1 == taken
        assert 0 == await storage.workers.release_leases(partition=entry.partition)
        failure = Failure(entry=entry, attempts=1, error="late", retry_in=None)
        assert [] == list(await storage.relay.fail(owner, epochs, [failure]))
        assert entry.partition not in (await storage.relay.heartbeat(owner)).leases
        assert [] == await storage.relay.claim(other, 64)
        async with asyncio.timeout(30):
            while not (claims := await storage.relay.claim(other, 64)):
                await storage.relay.heartbeat(owner)  # which renews all others
                await asyncio.sleep(0.1)
        assert [(entry.partition, epochs[entry.partition] + 2)] == [
            (claim.partition, claim.epoch) for claim in claims
        ]
        [row] = await storage.audit.search(AuditFilter(action="lease.release"))
        assert ("ann", f"partition {entry.partition} of scope *") == (row.actor, row.target)

    async def test_all_leases_of_an_owner_are_released(self, storage: Storage) -> None:
        owner = instance("owner")
        await storage.relay.heartbeat(owner)
        await storage.relay.claim(owner, 5)
        with pytest.raises(ConfigurationError):
            await storage.workers.release_leases()
        with pytest.raises(ConfigurationError):
            await storage.workers.release_leases(owner="owner", partition=1)
        assert 0 == await storage.workers.release_leases(owner="nobody")
        assert 5 == await storage.workers.release_leases(owner="owner")
        assert {} == (await storage.relay.heartbeat(owner)).leases
