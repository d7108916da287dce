"""The seams of semel. A docstring here is a contract: each sentence has a test.

Objects bound to a transaction (`Outbox`, `Inbox`) never commit.
Objects named `...Store` own their transactions and may be called from anywhere.
"""

from semel.protocols.basics import Clock, Observer, Serializer
from semel.protocols.bus import Delivery, LogEntry, MessageBus, MessageLog, Subscription
from semel.protocols.idempotency import IdempotencyStore
from semel.protocols.stores import Archive, AuditStore, InboxStore, OutboxStore, WorkerStore
from semel.protocols.work import Inbox, InboxGate, Outbox, Storage, UnitOfWork

__all__ = [
    "Archive",
    "AuditStore",
    "Clock",
    "Delivery",
    "IdempotencyStore",
    "Inbox",
    "InboxGate",
    "InboxStore",
    "LogEntry",
    "MessageBus",
    "MessageLog",
    "Observer",
    "Outbox",
    "OutboxStore",
    "Serializer",
    "Storage",
    "Subscription",
    "UnitOfWork",
    "WorkerStore",
]
