"""Document 001, the outbox pattern: each example, running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import String, delete, inspect, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from semel import (
    AggregateRoot,
    InMemoryMessageBus,
    Outbox,
    OutboxProjector,
    OutboxProjectorConfig,
    OutboxRecord,
    OutboxStatus,
    SqlAlchemyOutbox,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
)
from tests.spec.conftest import Base


@dataclass(frozen=True)
class OrderCreated:
    """The order's first event."""

    order_id: str
    total: float


class Order(Base, AggregateRoot):
    """An aggregate that is an entity too."""

    __tablename__ = "orders"
    topic = "order.created"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    total: Mapped[float]

    @classmethod
    def create(cls, order_id: str, total: float) -> Order:
        order = cls(id=order_id, total=total)
        order.add_event(OrderCreated(order_id, total))
        return order


async def rows(storage: SqlAlchemyStorage) -> list[OutboxRecord]:
    return list(reversed(await storage.outbox.search()))


async def test_automatic_mode(storage: SqlAlchemyStorage) -> None:
    """Domain events of a saved aggregate are written with it."""
    uow = SQLAlchemyUnitOfWork(storage.session_factory)
    async with uow:
        order = Order.create("123", 99.99)
        await uow.repository(Order).save(order)
        uow.track(order)
        await uow.commit()

    (row,) = await rows(storage)
    assert ("order.created", "OrderCreated") == (row.topic, row.event_type)
    assert {"order_id": "123", "total": 99.99} == row.payload
    assert ("Order", "123") == (row.aggregate_type, row.aggregate_id)
    assert () == order.pending_events


async def test_automatic_mode_without_commit(storage: SqlAlchemyStorage) -> None:
    """Without a commit neither the order nor its event exists."""
    uow = SQLAlchemyUnitOfWork(storage.session_factory)
    async with uow:
        await uow.repository(Order).save(Order.create("123", 99.99))

    assert [] == await rows(storage)
    async with storage.session_factory() as session:
        assert await session.get(Order, "123") is None


async def test_manual_mode(storage: SqlAlchemyStorage, session: AsyncSession) -> None:
    """`add`, then the session's commit."""
    outbox: Outbox = SqlAlchemyOutbox(session)
    record = await outbox.add(topic="order.created", payload={"order_id": "123", "total": 99.99})
    await session.commit()

    (row,) = await rows(storage)
    assert record.id == row.id
    assert {"order_id": "123", "total": 99.99} == row.payload
    assert OutboxStatus.NEW == row.status
    assert ("default", 0, 1) == (row.tenant_id, row.retry_count, row.schema_version)


async def test_table_has_the_documents_columns(storage: SqlAlchemyStorage) -> None:
    """Every column of the document exists under its name."""
    expected = {
        "id",
        "tenant_id",
        "aggregate_id",
        "aggregate_type",
        "topic",
        "occurred_at",
        "payload",
        "event_metadata",
        "routing_key",
        "schema_id",
        "schema_version",
        "status",
        "retry_count",
        "retry_after",
        "error_message",
        "created_at",
    }
    async with storage.engine.connect() as connection:
        columns = await connection.run_sync(lambda c: inspect(c).get_columns("outbox"))

    assert expected <= {column["name"] for column in columns}


async def test_projector_runs_in_the_background(
    storage: SqlAlchemyStorage, session: AsyncSession
) -> None:
    """NEW becomes SENT, and the broker has the event."""
    bus = InMemoryMessageBus()
    projector = OutboxProjector(
        session_factory=storage.session_factory,
        message_bus=bus,
        tenant_id="default",
    )
    task = asyncio.create_task(projector.run_forever())
    record = await SqlAlchemyOutbox(session).add(topic="order.created", payload={"order_id": "1"})
    await session.commit()
    async with asyncio.timeout(20):
        while await _status(storage, record.id) != OutboxStatus.SENT:
            await asyncio.sleep(0.01)
    await projector.stop()
    await task

    assert [record.id] == bus.published_ids("order.created")
    row = await storage.outbox.get(record.id)
    assert row is not None
    assert row.sent_at is not None


async def _status(storage: SqlAlchemyStorage, event_id: str) -> str | None:
    row = await storage.outbox.get(event_id)
    return None if row is None else row.status


async def test_configured_projector(storage: SqlAlchemyStorage, session: AsyncSession) -> None:
    """All five options of the document; the tenant is the configuration's."""
    config = OutboxProjectorConfig(
        batch_size=100,
        max_retry_attempts=5,
        sleep_busy=0.1,
        sleep_idle=2.0,
        default_tenant_id="default",
    )
    bus = InMemoryMessageBus()
    projector = OutboxProjector(
        session_factory=storage.session_factory, message_bus=bus, config=config
    )
    await SqlAlchemyOutbox(session).add(topic="order.created", payload={})
    await SqlAlchemyOutbox(session, tenant_id="other").add(topic="order.created", payload={})
    await session.commit()
    async with projector:
        sent = await projector.run_once()

    assert "default" == projector.tenant_id
    assert 1 == sent
    assert 1 == len(bus.published)


def test_configuration_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment sets what the code does not."""
    monkeypatch.setenv("SEMEL_OUTBOX_BATCH_SIZE", "250")
    monkeypatch.setenv("SEMEL_OUTBOX_SLEEP_IDLE", "0.5")

    config = OutboxProjectorConfig.from_env()

    assert (250, 0.5, 5) == (config.batch_size, config.sleep_idle, config.max_retry_attempts)


async def test_same_aggregate_in_order(storage: SqlAlchemyStorage) -> None:
    """Principle 3: the events of one aggregate keep their order."""
    for version in range(5):
        async with storage.unit_of_work() as uow:
            for aggregate in ("a", "b"):
                await uow.outbox.add(
                    topic="order.changed",
                    payload={"version": version},
                    aggregate_type="Order",
                    aggregate_id=aggregate,
                )
            await uow.commit()
    bus = InMemoryMessageBus()
    projector = OutboxProjector(storage.session_factory, bus)
    async with projector:
        while await projector.run_once():
            pass

    by_key: dict[str | None, list[bytes]] = {}
    for wire in bus.published:
        by_key.setdefault(wire.key, []).append(wire.body)
    expected = [b'{"version":%d}' % version for version in range(5)]
    assert {"Order:a": expected, "Order:b": expected} == by_key


async def _one_dead(storage: SqlAlchemyStorage, bus: InMemoryMessageBus) -> str:
    bus.faults.reject(lambda _: True, kind="permanent", times=1)
    async with storage.unit_of_work() as uow:
        record = await uow.outbox.add(topic="order.created", payload={"order_id": "1"})
        await uow.commit()
    projector = OutboxProjector(storage.session_factory, bus)
    async with projector:
        await projector.run_once()
    assert OutboxStatus.DEAD == await _status(storage, record.id)
    return record.id


async def test_dead_letter_is_kept_with_its_reason(storage: SqlAlchemyStorage) -> None:
    """A DEAD event stays, with what went wrong."""
    event_id = await _one_dead(storage, InMemoryMessageBus())
    row = await storage.outbox.get(event_id)

    assert row is not None
    assert row.error_message
    assert row.dead_letter["reason"] == "permanent"


async def test_dead_letter_reset_by_plain_sql(storage: SqlAlchemyStorage) -> None:
    """The document's way: repair, then set status back to NEW."""
    bus = InMemoryMessageBus()
    event_id = await _one_dead(storage, bus)
    async with storage.engine.begin() as connection:
        await connection.execute(
            update(OutboxRecord).where(OutboxRecord.id == event_id).values(status="NEW")
        )
    projector = OutboxProjector(storage.session_factory, bus)
    async with projector:
        await projector.run_once()

    assert OutboxStatus.SENT == await _status(storage, event_id)
    assert [event_id] == bus.published_ids()


async def test_dead_letter_deleted_by_hand(storage: SqlAlchemyStorage) -> None:
    """The document's other way: delete it."""
    event_id = await _one_dead(storage, InMemoryMessageBus())
    async with storage.engine.begin() as connection:
        await connection.execute(delete(OutboxRecord).where(OutboxRecord.id == event_id))

    assert await storage.outbox.get(event_id) is None


async def test_metrics_of_the_document(storage: SqlAlchemyStorage) -> None:
    """Backlog, failed and dead can be read at any time."""
    bus = InMemoryMessageBus()
    await _one_dead(storage, bus)
    async with storage.unit_of_work() as uow:
        await uow.outbox.add(topic="order.created", payload={})
        await uow.commit()
    stats = await storage.outbox.stats()

    assert 1 == stats.counts[OutboxStatus.NEW]
    assert 0 == stats.counts[OutboxStatus.FAILED]
    assert 1 == stats.counts[OutboxStatus.DEAD]
    assert stats.oldest_unsent_seconds is not None


async def test_cleanup_of_sent_events(storage: SqlAlchemyStorage) -> None:
    """SENT rows go after seven days; the age counts from the sending."""
    bus = InMemoryMessageBus()
    ids: list[Any] = []
    for _ in range(2):
        async with storage.unit_of_work() as uow:
            ids.append((await uow.outbox.add(topic="order.created", payload={})).id)
            await uow.commit()
    projector = OutboxProjector(storage.session_factory, bus)
    async with projector:
        await projector.run_once()
    long_ago = datetime.now(UTC) - timedelta(days=8)
    async with storage.engine.begin() as connection:
        await connection.execute(update(OutboxRecord).values(created_at=long_ago))
        await connection.execute(
            update(OutboxRecord).where(OutboxRecord.id == ids[0]).values(sent_at=long_ago)
        )
    deleted = await storage.outbox.cleanup(older_than=timedelta(days=7))

    assert 1 == deleted
    async with storage.session_factory() as session:
        assert [ids[1]] == list(await session.scalars(select(OutboxRecord.id)))
