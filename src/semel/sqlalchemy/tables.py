"""The tables, and the records read from them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Identity, Index, Integer, SmallInteger, Text, and_
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel.envelope import MAX_NAME, MAX_TENANT, MessageEnvelope
from semel.sqlalchemy.dialects import partial_index_options, table_options
from semel.sqlalchemy.layout import DEAD_BLOCKING, SCHEDULED
from semel.sqlalchemy.types import Bytes, JsonDocument, Name, Position, UtcDateTime
from semel.states import InboxStatus, OutboxStatus


class Base(DeclarativeBase):
    """Holds the metadata of semel's tables."""

    __table_args__: Any = table_options()


metadata = Base.metadata


class OutboxRecord(Base):
    """One event that a transaction committed."""

    __tablename__ = "outbox"
    __table_args__ = table_options(numbered=True)

    sequence: Mapped[int] = mapped_column(
        Position, Identity(always=False, cache=1), primary_key=True, autoincrement=True
    )
    id: Mapped[str] = mapped_column(Name(MAX_NAME), unique=True)
    tenant_id: Mapped[str] = mapped_column(Name(MAX_TENANT))
    aggregate_id: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    aggregate_type: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    topic: Mapped[str] = mapped_column(Name(MAX_NAME))
    event_type: Mapped[str] = mapped_column(Name(MAX_NAME))
    order_key: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    routing_key: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    occurred_at: Mapped[datetime] = mapped_column(UtcDateTime)
    payload: Mapped[Any | None] = mapped_column(JsonDocument)
    payload_bytes: Mapped[bytes | None] = mapped_column(Bytes)
    content_type: Mapped[str] = mapped_column(Name(MAX_NAME))
    event_metadata: Mapped[dict[str, str]] = mapped_column(JsonDocument)
    schema_id: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    schema_version: Mapped[int] = mapped_column(Integer, server_default="1")
    status: Mapped[str] = mapped_column(Name(10), server_default=OutboxStatus.NEW.value)
    retry_count: Mapped[int] = mapped_column(Integer, server_default="0")
    retry_after: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error_message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    available_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    sent_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_attempt_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    dead_letter: Mapped[Any | None] = mapped_column(JsonDocument)
    partition_no: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    lane: Mapped[int | None] = mapped_column(SmallInteger, server_default="0")

    def envelope(self) -> MessageEnvelope:
        """Return the message that this row carries."""
        return MessageEnvelope(
            topic=self.topic,
            event_type=self.event_type,
            event_id=self.id,
            tenant_id=self.tenant_id,
            key=self.order_key,
            aggregate_id=self.aggregate_id,
            aggregate_type=self.aggregate_type,
            routing_key=self.routing_key,
            schema_id=self.schema_id,
            schema_version=self.schema_version,
            occurred_at=self.occurred_at,
            metadata=dict(self.event_metadata or {}),
            content_type=self.content_type,
            **(
                {"payload": self.payload}
                if self.payload_bytes is None
                else {"body": self.payload_bytes}
            ),
        )


Index(
    "ix_outbox_lane",
    OutboxRecord.lane,
    OutboxRecord.sequence,
    **partial_index_options(OutboxRecord.lane.is_not(None)),
)
Index(
    "ix_outbox_available_at",
    OutboxRecord.available_at,
    **partial_index_options(
        and_(OutboxRecord.lane >= SCHEDULED, OutboxRecord.lane < DEAD_BLOCKING)
    ),
)


class OutboxSlot(Base):
    """A lock that writers of keyed events hold; the row is locked, never changed."""

    __tablename__ = "outbox_slot"

    slot: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)


class OutboxLease(Base):
    """Which projector may publish which partition."""

    __tablename__ = "outbox_lease"

    scope: Mapped[str] = mapped_column(Name(MAX_TENANT), primary_key=True)
    partition_no: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    owner: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    epoch: Mapped[int] = mapped_column(Position, server_default="0")
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class OutboxInstance(Base):
    """A running projector."""

    __tablename__ = "outbox_instance"

    id: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    scope: Mapped[str] = mapped_column(Name(MAX_TENANT))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    heartbeat_at: Mapped[datetime] = mapped_column(UtcDateTime)
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)


class OutboxControl(Base):
    """Facts about this installation: schema version, hash and counts, pauses."""

    __tablename__ = "outbox_control"

    name: Mapped[str] = mapped_column(Name(MAX_TENANT), primary_key=True)
    value: Mapped[Any] = mapped_column(JSON)


class InboxRecord(Base):
    """One message that one consumer has dealt with."""

    __tablename__ = "inbox"

    tenant_id: Mapped[str] = mapped_column(Name(MAX_TENANT), primary_key=True)
    consumer_name: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    message_id: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    event_type: Mapped[str] = mapped_column(Name(MAX_NAME))
    source: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    status: Mapped[str] = mapped_column(Name(10), server_default=InboxStatus.PROCESSED.value)
    attempts: Mapped[int] = mapped_column(Integer, server_default="1")
    handler: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    received_at: Mapped[datetime] = mapped_column(UtcDateTime)
    processed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    processing_duration_ms: Mapped[int | None] = mapped_column(Integer)
    payload_hash: Mapped[str | None] = mapped_column(Name(64))
    payload: Mapped[Any | None] = mapped_column(JsonDocument)
    extra_data: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    reason: Mapped[str | None] = mapped_column(Text)


Index("ix_inbox_processed_at", InboxRecord.processed_at)


class IdempotencyRecord(Base):
    """One API call, by its key, and the answer that it got."""

    __tablename__ = "idempotency"

    tenant_id: Mapped[str] = mapped_column(Name(MAX_TENANT), primary_key=True)
    principal: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    method: Mapped[str] = mapped_column(Name(16), primary_key=True)
    route: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    key_hash: Mapped[str] = mapped_column(Name(64), primary_key=True)
    key_prefix: Mapped[str] = mapped_column(Name(16))
    fingerprint: Mapped[str] = mapped_column(Name(64))
    state: Mapped[str] = mapped_column(Name(10))
    token: Mapped[str] = mapped_column(Name(36))
    locked_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    status_code: Mapped[int | None] = mapped_column(Integer)
    headers: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    body: Mapped[bytes | None] = mapped_column(Bytes)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


Index("ix_idempotency_expires_at", IdempotencyRecord.expires_at)


class AuditRecord(Base):
    """What an operator did."""

    __tablename__ = "audit"
    __table_args__ = table_options(numbered=True)

    id: Mapped[int] = mapped_column(
        Position, Identity(always=False, cache=1), primary_key=True, autoincrement=True
    )
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(Name(MAX_NAME))
    action: Mapped[str] = mapped_column(Name(64))
    target: Mapped[str | None] = mapped_column(Text)
    detail: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
