"""Document 004, Bee.Hub: its C# examples in their Python form, running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import String
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column

from semel import (
    AggregateRoot,
    Hub,
    InboxStatus,
    InMemoryMessageBus,
    JsonSerializer,
    MessageBus,
    MessageEnvelope,
    OutboxProjector,
    OutboxProjectorConfig,
    OutboxStatus,
    Serializer,
    SqlAlchemyStorage,
    collect_events_on_flush,
)
from tests.spec.conftest import Base

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@dataclass
class TicketOpened:
    """A domain event."""

    ticket_id: str
    topic = "tickets"


class Ticket(Base, AggregateRoot):
    """An entity that accumulates domain events."""

    __tablename__ = "tickets"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)


def test_message_serializer() -> None:
    """IMessageSerializer: bytes out, the same value back."""
    serializer: Serializer = JsonSerializer()

    assert {"a": [1, "é"]} == serializer.loads(serializer.dumps({"a": [1, "é"]}))


async def test_transport() -> None:
    """ITransport: publish bytes of a type; the message has an id and a version."""
    bus: MessageBus = InMemoryMessageBus()
    await bus.publish(MessageEnvelope(topic="t", event_type="Opened", payload=1, schema_version=3))
    subscription = await bus.subscribe("t", group="g")
    async with asyncio.timeout(5):
        delivery = await anext(aiter(subscription))
    headers = delivery.wire.headers
    await bus.close()

    assert headers["message_id"]
    assert "3" in headers.values()


async def test_save_changes_interceptor(storage: SqlAlchemyStorage) -> None:
    """OutboxSaveChangesInterceptor: a plain session's commit writes the entity's events."""
    factory = async_sessionmaker(storage.engine)
    collect_events_on_flush(factory)
    async with factory() as session:
        ticket = Ticket(id="t1")
        ticket.add_event(TicketOpened("t1"))
        session.add(ticket)
        await session.commit()

    (row,) = await storage.outbox.search()
    assert ("tickets", "TicketOpened") == (row.topic, row.event_type)
    assert {"ticket_id": "t1"} == row.payload


async def test_background_dispatcher(storage: SqlAlchemyStorage) -> None:
    """Pending goes out, Sent is marked; a failure counts, then becomes a dead letter."""
    bus = InMemoryMessageBus()
    bus.faults.reject(lambda message: message.payload["bad"], kind="transient")
    config = OutboxProjectorConfig(max_retry_attempts=2, retry_base_seconds=0.01)
    async with storage.unit_of_work() as uow:
        good = await uow.outbox.add("tickets", {"bad": False})
        bad = await uow.outbox.add("tickets", {"bad": True})
        await uow.commit()
    async with OutboxProjector(storage.session_factory, bus, config=config) as projector:
        async with asyncio.timeout(20):
            while (await storage.outbox.stats()).counts[OutboxStatus.DEAD] == 0:
                await projector.run_once()
    sent, dead = await storage.outbox.get(good.id), await storage.outbox.get(bad.id)

    assert sent is not None
    assert dead is not None
    assert (OutboxStatus.SENT, OutboxStatus.DEAD) == (sent.status, dead.status)
    assert 2 == dead.retry_count
    assert dead.last_attempt_at is not None
    assert {"reason", "exception", "stack", "occurred_at"} == set(dead.dead_letter)


async def test_available_at(storage: SqlAlchemyStorage) -> None:
    """AvailableAt: not before its time."""
    bus = InMemoryMessageBus()
    async with storage.unit_of_work() as uow:
        later = datetime.now(UTC) + timedelta(hours=1)
        await uow.outbox.add("tickets", {}, available_at=later)
        await uow.outbox.add("tickets", {}, available_at=datetime.now(UTC) - timedelta(hours=1))
        await uow.commit()
    async with OutboxProjector(storage.session_factory, bus) as projector:
        sent = await projector.run_once()
    stats = await storage.outbox.stats()

    assert 1 == sent
    assert 1 == stats.scheduled


@ON_SQLITE
async def test_registration(storage: SqlAlchemyStorage) -> None:
    """The services of the example, wired: storage, transport, dispatcher, subscriber, inbox."""
    hub = Hub("helpdesk", storage=storage, bus=InMemoryMessageBus())
    seen: list[str] = []

    @hub.on("tickets", "TicketOpened")
    async def opened(event: TicketOpened) -> None:
        seen.append(event.ticket_id)

    async with hub.running():
        async with hub.unit_of_work() as uow:
            ticket = Ticket(id="t1")
            ticket.add_event(TicketOpened("t1"))
            await uow.repository(Ticket).save(ticket)
            await uow.commit()
        await hub.drain()
    (record,) = await storage.inbox.search()

    assert ["t1"] == seen
    assert InboxStatus.PROCESSED == record.status
    assert record.handler is not None
    assert record.received_at is not None
