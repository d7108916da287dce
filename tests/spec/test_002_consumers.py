"""Document 002, event consumers: its TypeScript examples as Python, running."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from semel import (
    CommandBus,
    ConsumerHealthService,
    EventConsumer,
    Hub,
    InMemoryMessageBus,
    MessageEnvelope,
    SqlAlchemyInbox,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
)
from tests.services import Database
from tests.spec.conftest import Base, Effect

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@dataclass(frozen=True)
class AssignJobCommand:
    """What an assigned job asks for."""

    job_id: str
    assigned_to: str
    tenant_id: str
    user_id: str | None
    correlation_id: str | None


@dataclass(frozen=True)
class CancelJobCommand:
    """What a cancelled job asks for."""

    job_id: str
    reason: str


class JobEventConsumer(EventConsumer):
    """Section 2.1: events become commands; the inbox is the consumer's own."""

    name = "JobEventConsumer"
    topic = "job-events"
    group_id = "job-service-job-group"

    def __init__(self, command_bus: CommandBus, **options: Any) -> None:
        super().__init__(**options)
        self.command_bus = command_bus

    async def handle(self, event: MessageEnvelope, uow: Any) -> None:
        """Translate; an unknown type is told, not swallowed."""
        payload = event.payload
        match event.event_type:
            case "job.assigned":
                await self.command_bus.execute(
                    AssignJobCommand(
                        job_id=payload["job_id"],
                        assigned_to=payload["assigned_to"],
                        tenant_id=event.tenant_id,
                        user_id=event.user_id,
                        correlation_id=event.correlation_id,
                    ),
                    uow,
                )
            case "job.cancelled":
                await self.command_bus.execute(
                    CancelJobCommand(job_id=payload["job_id"], reason=payload["reason"]), uow
                )
            case _:
                logging.getLogger(__name__).warning("unknown type %s", event.event_type)


def command_bus() -> CommandBus:
    bus = CommandBus()

    @bus.handler(AssignJobCommand)
    async def assign(command: AssignJobCommand, uow: SQLAlchemyUnitOfWork) -> None:
        text = f"{command.job_id} to {command.assigned_to} by {command.user_id}"
        uow.session.add(Effect(text=text))

    @bus.handler(CancelJobCommand)
    async def cancel(command: CancelJobCommand, uow: SQLAlchemyUnitOfWork) -> None:
        uow.session.add(Effect(text=f"{command.job_id} cancelled: {command.reason}"))

    return bus


def assigned(event_id: str = "e1") -> MessageEnvelope:
    return MessageEnvelope(
        topic="job-events",
        event_id=event_id,
        event_type="job.assigned",
        payload={"job_id": "j1", "assigned_to": "kim"},
        metadata={"user_id": "u1", "correlation_id": "c1"},
    )


async def effects(storage: SqlAlchemyStorage) -> list[str]:
    async with storage.session_factory() as session:
        return list(await session.scalars(select(Effect.text).order_by(Effect.number)))


async def until_quiet(consumer: EventConsumer) -> None:
    async with asyncio.timeout(20):
        while consumer.in_flight or await consumer.lag():
            await asyncio.sleep(0.01)


async def test_consumer_turns_events_into_commands(storage: SqlAlchemyStorage) -> None:
    """A redelivered event runs its command once; all in the transaction of the inbox row."""
    bus = InMemoryMessageBus()
    consumer = JobEventConsumer(command_bus(), bus=bus, storage=storage)
    async with bus, consumer:
        await bus.publish(assigned())
        await bus.publish(assigned())
        await bus.publish(
            MessageEnvelope(
                topic="job-events",
                event_type="job.cancelled",
                payload={"job_id": "j2", "reason": "rain"},
            )
        )
        await until_quiet(consumer)

    assert {"j1 to kim by u1", "j2 cancelled: rain"} == set(await effects(storage))
    assert 2 == len(await effects(storage))


@ON_SQLITE
async def test_consumer_has_the_documents_interface(storage: SqlAlchemyStorage) -> None:
    """name, topic, group id, start, stop, handle, is_connected."""
    bus = InMemoryMessageBus()
    consumer = JobEventConsumer(command_bus(), bus=bus, storage=storage)
    names = (consumer.name, consumer.topic, consumer.group_id)
    before = await consumer.is_connected()
    await consumer.start()
    during = await consumer.is_connected()
    await consumer.stop()

    assert ("JobEventConsumer", "job-events", "job-service-job-group") == names
    assert (False, True, False) == (before, during, await consumer.is_connected())


@ON_SQLITE
async def test_failure_is_tried_again(storage: SqlAlchemyStorage) -> None:
    """An exception undoes everything, and the event comes again."""
    attempts: list[str] = []
    bus = InMemoryMessageBus()
    consumer = EventConsumer("job-service", "job-events", bus=bus, storage=storage)

    @consumer.on("job.assigned")
    async def handle(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        attempts.append(event.event_id)
        uow.session.add(Effect(text="assigned"))
        if len(attempts) == 1:
            raise RuntimeError("first time")

    async with bus, consumer:
        await bus.publish(assigned())
        await until_quiet(consumer)

    assert ["e1", "e1"] == attempts
    assert ["assigned"] == await effects(storage)


async def test_inbox_port(storage: SqlAlchemyStorage) -> None:
    """Section 3: isProcessed, markAsProcessed, cleanOldEntries."""
    async with storage.session_factory() as session:
        inbox = SqlAlchemyInbox(session)
        before = await inbox.is_processed("e1")
        await inbox.mark_processed("e1", "job.assigned", source="job-events")
        await session.commit()
        after = await inbox.is_processed("e1")
        removed = await inbox.cleanup_old_records(older_than_days=7)

    assert (False, True, 0) == (before, after, removed)


class Connected:
    """A consumer whose connection a test can cut."""

    connected = True

    async def is_connected(self) -> bool:
        return self.connected


async def test_health_service() -> None:
    """Section 4: more than five errors in a row is unhealthy, a success heals."""
    health = ConsumerHealthService()
    health.register_consumer("jobs", Connected())
    for _ in range(5):
        health.record_error("jobs")
    after_five = health.get_health_status()["jobs"]
    health.record_error("jobs")
    after_six = health.get_health_status()["jobs"]
    health.record_message_processed("jobs")
    healed = health.get_health_status()["jobs"]

    assert (True, 5) == (after_five.is_healthy, after_five.error_count)
    assert (False, 6) == (after_six.is_healthy, after_six.error_count)
    assert (True, 0) == (healed.is_healthy, healed.error_count)
    assert healed.last_message_at is not None


async def test_health_check_asks_for_the_connection() -> None:
    """What the document leaves commented out: a lost connection is unhealthy, an idle one not."""
    health = ConsumerHealthService()
    consumer = Connected()
    health.register_consumer("jobs", consumer)
    await health.check_health()
    idle = health.get_health_status()["jobs"]
    consumer.connected = False
    await health.check_health()
    cut = health.get_health_status()["jobs"]

    assert (True, None) == (idle.is_healthy, idle.last_message_at)
    assert not cut.is_healthy


async def test_module_wiring(sqlite: Database) -> None:
    """Section 6: the hub starts and stops what the module lists."""
    storage = SqlAlchemyStorage(sqlite.url)
    hub = Hub("job-service", storage=storage, bus=InMemoryMessageBus())
    consumer = JobEventConsumer(command_bus(), bus=hub.bus, storage=storage)
    hub.add(consumer)
    await storage.initialize()
    async with storage.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with hub.running():
        connected = await consumer.is_connected()
        async with hub.unit_of_work() as uow:
            await uow.outbox.put(assigned())
            await uow.commit()
        await hub.drain()
        health = hub.health.get_health_status()
    found = await effects(storage)
    await storage.close()

    assert connected
    assert not await consumer.is_connected()
    assert ["j1 to kim by u1"] == found
    assert all(info.is_healthy for info in health.values())
