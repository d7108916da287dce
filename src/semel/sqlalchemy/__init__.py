"""The storage: SQLAlchemy on PostgreSQL, MySQL, MariaDB and SQLite."""

from semel.sqlalchemy.inbox import SqlAlchemyInbox
from semel.sqlalchemy.listener import collect_events_on_flush
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import (
    IdempotencyRecord,
    InboxRecord,
    OutboxRecord,
    metadata,
)
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork

__all__ = [
    "IdempotencyRecord",
    "InboxRecord",
    "OutboxRecord",
    "SQLAlchemyUnitOfWork",
    "SqlAlchemyInbox",
    "SqlAlchemyOutbox",
    "SqlAlchemyStorage",
    "collect_events_on_flush",
    "metadata",
]
