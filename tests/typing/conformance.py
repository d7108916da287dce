"""The type checker proves that implementations fit their protocols; nothing here is run."""

from __future__ import annotations

from typing import assert_type

from semel import (
    Hub,
    InMemoryMessageBus,
    JsonSerializer,
    MessageBus,
    Observer,
    Outbox,
    OutboxRecord,
    Serializer,
    SqlAlchemyOutbox,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
    Storage,
    UnitOfWork,
)
from semel.clock import SystemClock
from semel.observer import CombinedObserver, LoggingObserver, NullObserver
from semel.opentelemetry import OpenTelemetryObserver
from semel.prometheus import PrometheusObserver
from semel.protocols import (
    AuditStore,
    Clock,
    IdempotencyStore,
    Inbox,
    InboxGate,
    InboxStore,
    MessageLog,
    OutboxStore,
    WorkerStore,
)
from semel.relay import RelayStore
from semel.sqlalchemy.gate import SqlAlchemyInboxGate
from semel.sqlalchemy.inbox import SqlAlchemyInbox
from semel.testing import FakeClock
from semel.transports.database import DatabaseMessageBus


def protocols(
    storage: SqlAlchemyStorage,
    outbox: SqlAlchemyOutbox,
    inbox: SqlAlchemyInbox,
    gate: SqlAlchemyInboxGate,
    uow: SQLAlchemyUnitOfWork,
    database: DatabaseMessageBus,
) -> tuple[object, ...]:
    """Each assignment is a claim that mypy checks."""
    as_storage: Storage = storage
    as_outbox: Outbox = outbox
    as_inbox: Inbox = inbox
    as_gate: InboxGate = gate
    as_uow: UnitOfWork = uow
    stores: tuple[OutboxStore, InboxStore, WorkerStore, AuditStore, RelayStore] = (
        storage.outbox,
        storage.inbox,
        storage.workers,
        storage.audit,
        storage.relay,
    )
    keys: IdempotencyStore = storage.idempotency
    buses: list[MessageBus] = [InMemoryMessageBus(), database]
    log: MessageLog = database
    clocks: list[Clock] = [SystemClock(), FakeClock()]
    observers: list[Observer] = [
        NullObserver(),
        LoggingObserver(),
        CombinedObserver(),
        PrometheusObserver(),
        OpenTelemetryObserver(),
    ]
    serializer: Serializer = JsonSerializer()
    return (
        as_storage,
        as_outbox,
        as_inbox,
        as_gate,
        as_uow,
        keys,
        stores,
        buses,
        log,
        clocks,
        observers,
        serializer,
    )


async def public(hub: Hub) -> None:
    """What users' editors should know."""
    async with hub.unit_of_work() as uow:
        assert_type(uow, SQLAlchemyUnitOfWork)
        assert_type(await uow.outbox.add("orders", {}), OutboxRecord)
