"""Rows as dicts that JSON can hold: for exports and archives."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from typing import Any

_OUTBOX = (
    "sequence",
    "id",
    "tenant_id",
    "topic",
    "event_type",
    "order_key",
    "routing_key",
    "aggregate_type",
    "aggregate_id",
    "status",
    "retry_count",
    "retry_after",
    "error_message",
    "occurred_at",
    "created_at",
    "available_at",
    "sent_at",
    "last_attempt_at",
    "content_type",
    "schema_id",
    "schema_version",
    "dead_letter",
)
_INBOX = (
    "tenant_id",
    "consumer_name",
    "message_id",
    "event_type",
    "source",
    "status",
    "attempts",
    "handler",
    "received_at",
    "processed_at",
    "processing_duration_ms",
    "payload_hash",
    "reason",
)


def outbox_row(record: Any, *, payload: bool = False) -> dict[str, Any]:
    """Return an outbox row; payload and metadata, which may hold secrets, only on request."""
    row = _plain(record, _OUTBOX)
    if payload:
        row["event_metadata"] = record.event_metadata
        row["payload"] = record.payload
        if record.payload_bytes is not None:
            row["payload_base64"] = b64encode(record.payload_bytes).decode()
    return row


def inbox_row(record: Any, *, payload: bool = False) -> dict[str, Any]:
    """Return an inbox record; payload and extra data only on request."""
    row = _plain(record, _INBOX)
    if payload:
        row["payload"] = record.payload
        row["extra_data"] = record.extra_data
    return row


def _plain(record: Any, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }
