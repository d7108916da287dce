"""Reliable messaging on the database that a service already has.

Inside your transaction: `Outbox` and `Inbox`. Outside: `OutboxProjector` (rows to the broker)
and `EventConsumer` (broker to handlers). One value travels: `MessageEnvelope`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.aggregate import AggregateRoot
    from semel.asgi import IdempotencyMiddleware, IdempotencyPolicy, idempotent_call
    from semel.commands import CommandBus
    from semel.consumer import EventConsumer
    from semel.envelope import MessageEnvelope
    from semel.errors import (
        BusError,
        ConfigurationError,
        DuplicateMessageError,
        IdempotencyConflictError,
        IdempotencyError,
        IdempotencyKeyMissingError,
        IdempotencyMismatchError,
        InvalidMessageError,
        NoTransactionError,
        PayloadConflictError,
        PayloadTooLargeError,
        PublishError,
        SchemaError,
        SemelError,
        SerializationError,
        StorageError,
        TransactionMisuseError,
        UnknownCommandError,
        WireError,
    )
    from semel.health import ConsumerHealthInfo, ConsumerHealthService
    from semel.hub import Hub
    from semel.idempotency import Idempotency, idempotent
    from semel.inbox import ConsumerInbox
    from semel.maintenance import Retention
    from semel.projector import OutboxProjector
    from semel.protocols import (
        Inbox,
        MessageBus,
        Observer,
        Outbox,
        Serializer,
        Storage,
        UnitOfWork,
    )
    from semel.retry import RetryPolicy
    from semel.serializers import JsonSerializer, Upcasters
    from semel.settings import OutboxProjectorConfig, TopicPolicy
    from semel.sqlalchemy import (
        IdempotencyRecord,
        InboxRecord,
        OutboxRecord,
        SqlAlchemyInbox,
        SqlAlchemyOutbox,
        SqlAlchemyStorage,
        SQLAlchemyUnitOfWork,
        collect_events_on_flush,
    )
    from semel.states import InboxStatus, OutboxStatus
    from semel.transports import bus_from_url
    from semel.transports.memory import InMemoryMessageBus

__version__ = "0.1.0"

__all__ = [
    "AggregateRoot",
    "BusError",
    "CommandBus",
    "ConfigurationError",
    "ConsumerHealthInfo",
    "ConsumerHealthService",
    "ConsumerInbox",
    "DuplicateMessageError",
    "EventConsumer",
    "Hub",
    "Idempotency",
    "IdempotencyConflictError",
    "IdempotencyError",
    "IdempotencyKeyMissingError",
    "IdempotencyMiddleware",
    "IdempotencyMismatchError",
    "IdempotencyPolicy",
    "IdempotencyRecord",
    "InMemoryMessageBus",
    "Inbox",
    "InboxRecord",
    "InboxStatus",
    "InvalidMessageError",
    "JsonSerializer",
    "MessageBus",
    "MessageEnvelope",
    "NoTransactionError",
    "Observer",
    "Outbox",
    "OutboxProjector",
    "OutboxProjectorConfig",
    "OutboxRecord",
    "OutboxStatus",
    "PayloadConflictError",
    "PayloadTooLargeError",
    "PublishError",
    "Retention",
    "RetryPolicy",
    "SQLAlchemyUnitOfWork",
    "SchemaError",
    "SemelError",
    "SerializationError",
    "Serializer",
    "SqlAlchemyInbox",
    "SqlAlchemyOutbox",
    "SqlAlchemyStorage",
    "Storage",
    "StorageError",
    "TopicPolicy",
    "TransactionMisuseError",
    "UnitOfWork",
    "UnknownCommandError",
    "Upcasters",
    "WireError",
    "bus_from_url",
    "collect_events_on_flush",
    "idempotent",
    "idempotent_call",
]

# Where each name is: loaded when it is first asked for, so that an import costs what it uses.
_HOMES = {
    "AggregateRoot": "semel.aggregate",
    "BusError": "semel.errors",
    "CommandBus": "semel.commands",
    "ConfigurationError": "semel.errors",
    "ConsumerHealthInfo": "semel.health",
    "ConsumerHealthService": "semel.health",
    "ConsumerInbox": "semel.inbox",
    "DuplicateMessageError": "semel.errors",
    "EventConsumer": "semel.consumer",
    "Hub": "semel.hub",
    "Idempotency": "semel.idempotency",
    "IdempotencyConflictError": "semel.errors",
    "IdempotencyError": "semel.errors",
    "IdempotencyKeyMissingError": "semel.errors",
    "IdempotencyMiddleware": "semel.asgi",
    "IdempotencyMismatchError": "semel.errors",
    "IdempotencyPolicy": "semel.asgi",
    "IdempotencyRecord": "semel.sqlalchemy",
    "InMemoryMessageBus": "semel.transports.memory",
    "Inbox": "semel.protocols",
    "InboxRecord": "semel.sqlalchemy",
    "InboxStatus": "semel.states",
    "InvalidMessageError": "semel.errors",
    "JsonSerializer": "semel.serializers",
    "MessageBus": "semel.protocols",
    "MessageEnvelope": "semel.envelope",
    "NoTransactionError": "semel.errors",
    "Observer": "semel.protocols",
    "Outbox": "semel.protocols",
    "OutboxProjector": "semel.projector",
    "OutboxProjectorConfig": "semel.settings",
    "OutboxRecord": "semel.sqlalchemy",
    "OutboxStatus": "semel.states",
    "PayloadConflictError": "semel.errors",
    "PayloadTooLargeError": "semel.errors",
    "PublishError": "semel.errors",
    "Retention": "semel.maintenance",
    "RetryPolicy": "semel.retry",
    "SQLAlchemyUnitOfWork": "semel.sqlalchemy",
    "SchemaError": "semel.errors",
    "SemelError": "semel.errors",
    "SerializationError": "semel.errors",
    "Serializer": "semel.protocols",
    "SqlAlchemyInbox": "semel.sqlalchemy",
    "SqlAlchemyOutbox": "semel.sqlalchemy",
    "SqlAlchemyStorage": "semel.sqlalchemy",
    "Storage": "semel.protocols",
    "StorageError": "semel.errors",
    "TopicPolicy": "semel.settings",
    "TransactionMisuseError": "semel.errors",
    "UnitOfWork": "semel.protocols",
    "UnknownCommandError": "semel.errors",
    "Upcasters": "semel.serializers",
    "WireError": "semel.errors",
    "bus_from_url": "semel.transports",
    "collect_events_on_flush": "semel.sqlalchemy",
    "idempotent": "semel.idempotency",
    "idempotent_call": "semel.asgi",
}


if not TYPE_CHECKING:  # a type checker knows all names, and should complain of others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
