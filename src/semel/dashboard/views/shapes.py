"""Rows as pages and programs see them: JSON-ready, and without what one may not see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from semel.errors import redact
from semel.operations.rows import inbox_row, outbox_row
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord

_SECRET = re.compile(r"(?i)authori[sz]ation|cookie|password|secret|token|api.?key|credential")


class Cause(TypedDict):
    """The ids that tie events together: the only headers that everybody may see."""

    correlation_id: str | None
    causation_id: str | None


def event(record: OutboxRecord, *, payload: bool = False) -> dict[str, Any]:
    """Return an outbox row; payload, headers and stack only if *payload*."""
    row = outbox_row(record, payload=payload)
    letter = row.pop("dead_letter", None) or {}
    row["error_message"] = _redacted(row["error_message"])
    row["reason"] = letter.get("reason")
    row["stack"] = _redacted(letter.get("stack")) if payload else None
    if payload:
        row["event_metadata"] = _masked(row["event_metadata"] or {})
    row["hidden"] = not payload
    row["partition_no"] = record.partition_no
    return row


def cause(record: OutboxRecord) -> Cause:
    """Return where the event comes from."""
    metadata = record.event_metadata or {}
    return Cause(
        correlation_id=metadata.get("correlation_id"),
        causation_id=metadata.get("causation_id"),
    )


def message(record: InboxRecord, *, payload: bool = False) -> dict[str, Any]:
    """Return an inbox record; payload and extra data only if *payload*."""
    row = inbox_row(record, payload=payload)
    row["reason"] = _redacted(row["reason"])
    row["hidden"] = not payload
    return row


def moment(value: datetime | None) -> str | None:
    """Return an instant as text."""
    return None if value is None else value.isoformat()


def clean(value: Any) -> Any:
    """Return a JSON value without secrets in its texts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def _masked(metadata: dict[str, str]) -> dict[str, str]:
    """Hide the values of headers that are secrets by their names, from everybody."""
    return {
        name: "***" if _SECRET.search(name) else redact(value) for name, value in metadata.items()
    }


def _redacted(text: str | None) -> str | None:
    return None if text is None else redact(text)
