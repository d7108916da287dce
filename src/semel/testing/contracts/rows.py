"""How the contracts of the outbox make rows and look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel.protocols import Storage
from semel.relay import ALL_TENANTS, Entry, Failure, Instance, Read

PARTITIONS = range(64)


def instance(
    name: str = "one",
    *,
    scope: str = ALL_TENANTS,
    seconds: float = 60.0,
    detail: Mapping[str, Any] | None = None,
) -> Instance:
    """Return a projector."""
    return Instance(id=name, scope=scope, lease_seconds=seconds, detail=detail or {})


async def add(
    storage: Storage, *topics: str, tenant_id: str = "default", **options: Any
) -> list[str]:
    """Commit one event per topic, in one transaction; return their ids."""
    async with storage.unit_of_work(tenant_id=tenant_id) as uow:
        records = [
            await uow.outbox.add(topic, {"number": number}, **options)
            for number, topic in enumerate(topics)
        ]
        await uow.commit()
    return [record.id for record in records]


async def unsent(storage: Storage, **options: Any) -> Sequence[Entry]:
    """Fetch everything that is hot."""
    return await storage.relay.fetch([Read(n, 0, 1000) for n in PARTITIONS], **options)


async def ids(storage: Storage, **options: Any) -> list[str]:
    """Return the ids of everything that is hot, in order."""
    return [entry.envelope.event_id for entry in await unsent(storage, **options)]


async def bury(storage: Storage, *event_ids: str, blocks: bool = True) -> None:
    """Make events DEAD, as a projector would."""
    undertaker = instance("undertaker")
    epochs = {claim.partition: claim.epoch for claim in await storage.relay.claim(undertaker, 64)}
    failures = [
        Failure(
            entry=entry,
            attempts=5,
            error="no route",
            retry_in=None,
            blocks=blocks,
            dead_letter={"reason": "no route"},
        )
        for entry in await unsent(storage)
        if entry.envelope.event_id in event_ids
    ]
    assert len(event_ids) == len(await storage.relay.fail(undertaker, epochs, failures))
    await storage.relay.retire(undertaker)


async def send(storage: Storage, *event_ids: str) -> None:
    """Make events SENT, as a projector would."""
    sequences = [e.sequence for e in await unsent(storage) if e.envelope.event_id in event_ids]
    assert len(event_ids) == await storage.relay.acknowledge(sequences, keep=True)
