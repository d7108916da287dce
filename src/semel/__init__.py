"""Reliable messaging on the database that a service already has.

Inside your transaction: `Outbox` and `Inbox`. Outside: `OutboxProjector` (rows to the broker)
and `EventConsumer` (broker to handlers). One value travels: `MessageEnvelope`.
"""

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
