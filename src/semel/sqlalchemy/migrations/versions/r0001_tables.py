"""The tables of the first release."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    JSON,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    and_,
    func,
    select,
)

from semel.errors import SchemaError
from semel.sqlalchemy.dialects import partial_index_options, table_options
from semel.sqlalchemy.migrations.steps import create, document, fill, is_offline, to_version
from semel.sqlalchemy.types import Bytes, JsonDocument, Name, Position, UtcDateTime

revision = "semel_0001"
down_revision = None
branch_labels = ("semel",)
depends_on = None

# As they were then: what tables.py says today is the sum of all revisions.
_metadata = MetaData()
_plain, _numbered = table_options(), table_options(numbered=True)

control = Table(
    "outbox_control",
    _metadata,
    Column("name", Name(64), primary_key=True),
    Column("value", JSON, nullable=False),
    **_plain,
)
outbox = Table(
    "outbox",
    _metadata,
    Column("sequence", Position, Identity(always=False, cache=1), primary_key=True),
    Column("id", Name(255), unique=True, nullable=False),
    Column("tenant_id", Name(64), nullable=False),
    Column("aggregate_id", Name(255)),
    Column("aggregate_type", Name(255)),
    Column("topic", Name(255), nullable=False),
    Column("event_type", Name(255), nullable=False),
    Column("order_key", Name(255)),
    Column("routing_key", Name(255)),
    Column("occurred_at", UtcDateTime, nullable=False),
    Column("payload", JsonDocument),
    Column("payload_bytes", Bytes),
    Column("content_type", Name(255), nullable=False),
    Column("event_metadata", JsonDocument, nullable=False),
    Column("schema_id", Name(255)),
    Column("schema_version", Integer, server_default="1", nullable=False),
    Column("status", Name(10), server_default="NEW", nullable=False),
    Column("retry_count", Integer, server_default="0", nullable=False),
    Column("retry_after", UtcDateTime),
    Column("error_message", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("available_at", UtcDateTime),
    Column("sent_at", UtcDateTime),
    Column("last_attempt_at", UtcDateTime),
    Column("dead_letter", JsonDocument),
    Column("partition_no", SmallInteger, server_default="0", nullable=False),
    Column("lane", SmallInteger, server_default="0"),
    **_numbered,
)
Index(
    "ix_outbox_lane",
    outbox.c.lane,
    outbox.c.sequence,
    **partial_index_options(outbox.c.lane.is_not(None)),
)
Index(
    "ix_outbox_available_at",
    outbox.c.available_at,
    **partial_index_options(and_(outbox.c.lane >= 128, outbox.c.lane < 192)),
)
slot = Table(
    "outbox_slot",
    _metadata,
    Column("slot", SmallInteger, primary_key=True, autoincrement=False),
    **_plain,
)
lease = Table(
    "outbox_lease",
    _metadata,
    Column("scope", Name(64), primary_key=True),
    Column("partition_no", SmallInteger, primary_key=True, autoincrement=False),
    Column("owner", Name(255)),
    Column("epoch", Position, server_default="0", nullable=False),
    Column("expires_at", UtcDateTime),
    **_plain,
)
instance = Table(
    "outbox_instance",
    _metadata,
    Column("id", Name(255), primary_key=True),
    Column("scope", Name(64), nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("heartbeat_at", UtcDateTime, nullable=False),
    Column("detail", JSON, nullable=False),
    **_plain,
)
inbox = Table(
    "inbox",
    _metadata,
    Column("tenant_id", Name(64), primary_key=True),
    Column("consumer_name", Name(255), primary_key=True),
    Column("message_id", Name(255), primary_key=True),
    Column("event_type", Name(255), nullable=False),
    Column("source", Name(255)),
    Column("status", Name(10), server_default="PROCESSED", nullable=False),
    Column("attempts", Integer, server_default="1", nullable=False),
    Column("handler", Name(255)),
    Column("received_at", UtcDateTime, nullable=False),
    Column("processed_at", UtcDateTime),
    Column("processing_duration_ms", Integer),
    Column("payload_hash", Name(64)),
    Column("payload", JsonDocument),
    Column("extra_data", JSON),
    Column("reason", Text),
    **_plain,
)
Index("ix_inbox_processed_at", inbox.c.processed_at)
idempotency = Table(
    "idempotency",
    _metadata,
    Column("tenant_id", Name(64), primary_key=True),
    Column("principal", Name(255), primary_key=True),
    Column("method", Name(16), primary_key=True),
    Column("route", Name(255), primary_key=True),
    Column("key_hash", Name(64), primary_key=True),
    Column("key_prefix", Name(16), nullable=False),
    Column("fingerprint", Name(64), nullable=False),
    Column("state", Name(10), nullable=False),
    Column("token", Name(36), nullable=False),
    Column("locked_until", UtcDateTime),
    Column("status_code", Integer),
    Column("headers", JSON),
    Column("body", Bytes),
    Column("created_at", UtcDateTime, nullable=False),
    Column("completed_at", UtcDateTime),
    Column("expires_at", UtcDateTime, nullable=False),
    **_plain,
)
Index("ix_idempotency_expires_at", idempotency.c.expires_at)
audit = Table(
    "audit",
    _metadata,
    Column("id", Position, Identity(always=False, cache=1), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", Name(255), nullable=False),
    Column("action", Name(64), nullable=False),
    Column("target", Text),
    Column("detail", JSON),
    **_numbered,
)
bus_partition = Table(
    "bus_partition",
    _metadata,
    Column("id", Position, Identity(always=False, cache=1), primary_key=True),
    Column("topic", Name(255), nullable=False),
    Column("partition_no", SmallInteger, nullable=False),
    Column("first_position", Position, server_default="0", nullable=False),
    Column("next_position", Position, server_default="0", nullable=False),
    UniqueConstraint("topic", "partition_no", name="uq_bus_partition_topic"),
    **_numbered,
)
bus_message = Table(
    "bus_message",
    _metadata,
    Column("partition_id", Position, primary_key=True, autoincrement=False),
    Column("position", Position, primary_key=True, autoincrement=False),
    Column("message_key", Name(255)),
    Column("headers", JsonDocument, nullable=False),
    Column("body", Bytes, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    **_plain,
)
bus_group = Table(
    "bus_group",
    _metadata,
    Column("group_name", Name(255), primary_key=True),
    Column("partition_id", Position, primary_key=True, autoincrement=False),
    Column("position", Position, nullable=False),
    Column("delivered", Position, nullable=False),
    Column("owner", Name(255)),
    Column("epoch", Position, server_default="0", nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    **_plain,
)
bus_member = Table(
    "bus_member",
    _metadata,
    Column("id", Name(255), primary_key=True),
    Column("topic", Name(255), nullable=False),
    Column("group_name", Name(255), nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    **_plain,
)


@to_version(1)
def upgrade() -> None:
    """Create the tables; the control table first, by which they are known as semel's."""
    create([control, *(table for table in _metadata.tables.values() if table is not control)])
    fill(slot, [{"slot": number} for number in range(1024)])
    fill(
        control,
        [
            {"name": "schema", "value": document({})},
            {"name": "operations", "value": document(0)},
            {"name": "pauses", "value": document([])},
            {"name": "scope", "value": document(None)},
        ],
    )


def downgrade() -> None:
    """Drop the tables, unless events in them would be lost."""
    if not is_offline():
        unsent = op.get_bind().scalar(
            select(func.count()).select_from(outbox).where(outbox.c.lane.is_not(None))
        )
        if unsent:
            raise SchemaError(
                f"{unsent} events of the outbox are not sent: dropping the tables would lose them"
            )
    for table in _metadata.tables.values():
        op.drop_table(table.name)
