"""New outbox rows, and where they go: slot, partition, lane."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from semel.envelope import MessageEnvelope
from semel.errors import PayloadTooLargeError, SerializationError
from semel.hashing import is_document
from semel.protocols import Serializer
from semel.serializers import JSON, encode
from semel.sqlalchemy.layout import HOT, SCHEDULED

# Keyless events of one transaction share few slots: each slot is a lock to take.
_SPREAD = 8


class NewRow(NamedTuple):
    """The columns that a writer sets."""

    id: str
    tenant_id: str
    aggregate_id: str | None
    aggregate_type: str | None
    topic: str
    event_type: str
    order_key: str | None
    routing_key: str | None
    occurred_at: datetime
    payload: str | None
    payload_bytes: bytes | None
    content_type: str
    event_metadata: str
    schema_id: str | None
    schema_version: int
    available_at: datetime | None
    ordered: bool


class Plan(NamedTuple):
    """What one transaction has to lock and to insert."""

    rows: Sequence[NewRow]
    partitions: Sequence[int]
    lanes: Sequence[int]
    slots: Sequence[int]
    exclusive: bool

    def values(self, **others: Any) -> list[dict[str, Any]]:
        """Return the rows as named values, each with the *others*."""
        values = []
        for row, number, lane in zip(self.rows, self.partitions, self.lanes, strict=True):
            value = row._asdict()
            del value["ordered"]
            value.update(others, partition_no=number, lane=lane)
            values.append(value)
        return values


def new_row(
    envelope: MessageEnvelope,
    *,
    serializer: Serializer,
    limit: int,
    available_at: datetime | None = None,
    ordered: bool = True,
) -> NewRow:
    """Encode *envelope*; raise for a payload that cannot be stored."""
    own = envelope.__dict__
    if "body" in own or "document" in own:
        body, content_type = envelope.body, envelope.content_type
        schema_id, schema_version = envelope.schema_id, envelope.schema_version
    else:
        body, content_type, schema_id, schema_version = encode(serializer, envelope)
    if len(body) > limit:
        raise PayloadTooLargeError(
            f"the payload is {len(body)} bytes, the limit is {limit}: store the data elsewhere "
            "and send a reference, or raise max_payload_bytes"
        )
    text: str | None = None
    if content_type == JSON:
        if "body" in own and not is_document(body):
            raise SerializationError(f"the body is no JSON in UTF-8, as {JSON} promises")
        text = body.decode()
    metadata = dict(envelope.metadata)
    if envelope.source is not None:
        metadata.setdefault("source", envelope.source)
    return NewRow(
        envelope.event_id,
        envelope.tenant_id,
        envelope.aggregate_id,
        envelope.aggregate_type,
        envelope.topic,
        envelope.event_type,
        envelope.order_key,
        envelope.routing_key,
        envelope.occurred_at,
        text,
        None if text is not None else body,
        content_type,
        json.dumps(metadata, separators=(",", ":"), ensure_ascii=False) if metadata else "{}",
        schema_id,
        schema_version,
        available_at,
        ordered,
    )


def slot_of(tenant_id: str, key: str, slots: int) -> int:
    """Return the slot whose lock puts events of this key in the order of their commits."""
    return crc32(f"{tenant_id}\x00{key}".encode()) % slots


def place(rows: Sequence[NewRow], *, slots: int, partitions: int) -> Plan:
    """Choose slots and partitions.

    Keyed rows take the slot of their key, which the writer locks exclusively. Keyless ones ride
    on a slot that is locked anyway, or share a few, locked in shared mode: so the relay can tell
    when all rows up to a position are visible.
    """
    keyed = [
        slot_of(row.tenant_id, row.order_key, slots)
        if row.ordered and row.order_key is not None
        else None
        for row in rows
    ]
    locked = sorted({slot for slot in keyed if slot is not None})
    exclusive = bool(locked)
    if not locked:
        spread = 1 if len(rows) <= _SPREAD else _SPREAD
        locked = sorted({crc32(row.id.encode()) % slots for row in rows[:spread]})
    numbers: list[int] = []
    lanes: list[int] = []
    for index, (row, slot) in enumerate(zip(rows, keyed, strict=True)):
        chosen = slot if slot is not None else locked[index % min(len(locked), _SPREAD)]
        number = chosen % partitions
        numbers.append(number)
        lanes.append(number + (HOT if row.available_at is None else SCHEDULED))
    return Plan(rows, numbers, lanes, locked, exclusive)
