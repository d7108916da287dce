"""How the outbox moves, and what DEAD rows have in common."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from semel.sqlalchemy.layout import DEAD_BLOCKING
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord


async def add(storage: SqlAlchemyStorage, *ids: str, tenant: str = "acme") -> None:
    async with storage.unit_of_work(tenant_id=tenant) as uow:
        for event_id in ids:
            await uow.outbox.add("orders", {}, event_type="Placed", event_id=event_id)
        await uow.commit()


async def change(storage: SqlAlchemyStorage, *ids: str, **values: object) -> None:
    async with storage.engine.begin() as connection:
        await connection.execute(
            update(OutboxRecord).where(OutboxRecord.id.in_(ids)).values(**values)
        )


async def kill(storage: SqlAlchemyStorage, *ids: str, error: str | None, at: datetime) -> None:
    lane = OutboxRecord.partition_no + DEAD_BLOCKING
    await change(storage, *ids, status="DEAD", lane=lane, error_message=error, last_attempt_at=at)


async def test_pulse(storage: SqlAlchemyStorage) -> None:
    """Counts what came after a number, of all or one tenant, and how long sending took."""
    empty = await storage.outbox.pulse()
    assert (0, None, None) == (empty.written, empty.latency_p50, empty.latency_p95)

    await add(storage, "a", "b", "c")
    first = await storage.outbox.pulse(after=empty.position)
    await add(storage, "d", tenant="globex")
    await add(storage, "e")
    moment = datetime.now(UTC)
    for event_id, seconds in (("a", 1), ("b", 2), ("c", 9), ("d", 5)):
        times = {"created_at": moment, "sent_at": moment + timedelta(seconds=seconds)}
        await change(storage, event_id, status="SENT", lane=None, **times)

    second = await storage.outbox.pulse(after=first.position)
    assert 2 == second.written
    assert (5.0, 9.0) == (second.latency_p50, second.latency_p95)
    theirs = await storage.outbox.pulse(after=first.position, tenant_id="globex")
    assert (1, 5.0) == (theirs.written, theirs.latency_p50)
    assert 0 == (await storage.outbox.pulse(after=second.position)).written


async def test_dead_groups(storage: SqlAlchemyStorage) -> None:
    """By topic, type and error, the largest first, each with its newest event."""
    await add(storage, "a", "b", "c", "waits")
    await add(storage, "d", tenant="globex")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    await kill(storage, "a", error="too large", at=at)
    await kill(storage, "c", error="too large", at=at + timedelta(hours=1))
    await kill(storage, "b", error=None, at=at)
    await kill(storage, "d", error="too large", at=at)

    found = await storage.outbox.dead_groups()
    assert [("orders", "Placed", "too large", 3, "d"), ("orders", "Placed", None, 1, "b")] == [
        (group.topic, group.event_type, group.error, group.count.number, group.last_id)
        for group in found
    ]
    assert at + timedelta(hours=1) == found[0].last_at
    assert not found[0].count.capped
    [theirs] = await storage.outbox.dead_groups(tenant_id="globex")
    assert 1 == theirs.count.number
    [largest] = await storage.outbox.dead_groups(limit=1)
    assert largest.count.capped
