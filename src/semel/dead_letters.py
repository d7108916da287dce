"""Messages that a consumer gave up, as messages to `<topic>.dead`.

A dead letter has an id of its own: with the original's it would collide with the row of a service
that both sent and received it. What it was travels in its metadata. The id follows from the message
and the consumer: a message that comes again because its end was not acknowledged gets the letter
that it has, and one that was revived from its letter gets another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from uuid import NAMESPACE_URL, uuid5

from semel.envelope import (
    DEFAULT_TENANT,
    MAX_METADATA,
    MAX_METADATA_BYTES,
    MAX_NAME,
    MessageEnvelope,
    check_metadata,
    check_name,
)
from semel.errors import InvalidMessageError, SerializationError
from semel.hashing import is_document, is_json
from semel.wire import WireMessage

BINARY = "application/octet-stream"
REVIVED = "revived_from"

_LETTERS = uuid5(NAMESPACE_URL, "urn:semel:dead-letter")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_UNNAMEABLE = re.compile(r"[^A-Za-z0-9_.-]")


class Reason(StrEnum):
    """Why a message was given up or put aside."""

    FAILED = "failed"
    CRASHED = "crashed"
    INVALID = "invalid"
    UNKNOWN_TYPE = "unknown_type"
    FOREIGN_TENANT = "foreign_tenant"
    UNDECODABLE = "undecodable"
    CONFLICT = "conflict"


def dead_letter_topic(topic: str) -> str:
    """Return where messages of *topic* end that nobody can process."""
    return f"{topic[: MAX_NAME - len('.dead')]}.dead"


def dead_letter(
    message: MessageEnvelope,
    *,
    topic: str,
    consumer_name: str,
    reason: Reason,
    detail: str,
    attempts: int = 1,
) -> MessageEnvelope:
    """Return the letter of a message that was decoded: same body, same order key."""
    body, content_type = _body(message), message.content_type
    if is_json(content_type) and not is_document(body):
        content_type = BINARY
    metadata = {
        "dead_letter_id": message.event_id,
        "dead_letter_topic": message.topic,
        "dead_letter_consumer": consumer_name,
        "dead_letter_reason": reason.value,
        "dead_letter_error": detail,
        "dead_letter_attempts": str(attempts),
        "dead_letter_content_type": message.content_type,
    }
    return MessageEnvelope(
        topic=topic,
        event_id=_letter_id(message, body, consumer_name),
        event_type=message.event_type,
        tenant_id=message.tenant_id,
        key=message.order_key,
        aggregate_id=message.aggregate_id,
        aggregate_type=message.aggregate_type,
        routing_key=message.routing_key,
        schema_id=message.schema_id,
        schema_version=message.schema_version,
        source=message.source,
        occurred_at=message.occurred_at,
        metadata=_fit(metadata, {"correlation_id": message.event_id, **message.metadata}),
        content_type=content_type,
        body=body,
    )


def raw_letter(
    wire: WireMessage, *, topic: str, consumer_name: str, reason: Reason, detail: str
) -> MessageEnvelope:
    """Return the letter of something that is no message: its bytes, and headers as they came.

    Its id is a new one: nothing tells a second delivery from another one with the same bytes.
    """
    metadata = {
        "dead_letter_topic": wire.topic,
        "dead_letter_consumer": consumer_name,
        "dead_letter_reason": reason.value,
        "dead_letter_error": detail,
    }
    headers = {
        f"header_{_UNNAMEABLE.sub('_', str(name))}"[:128]: str(value)
        for name, value in wire.headers.items()
    }
    return MessageEnvelope(
        topic=topic,
        event_type=topic,
        tenant_id=DEFAULT_TENANT,
        key=_name_or_none(wire.key),
        metadata=_fit(metadata, headers),
        content_type=BINARY,
        body=wire.body,
    )


def revive(letter: MessageEnvelope) -> MessageEnvelope:
    """Return the message that *letter* is about, with its own id, to be sent again.

    The inbox lets a DEAD or PARKED message pass once more. Raises `InvalidMessageError` for what
    is no dead letter, or was no message in the first place.
    """
    about = letter.metadata
    try:
        topic, event_id = about["dead_letter_topic"], about["dead_letter_id"]
    except KeyError:
        raise InvalidMessageError(
            "this is no dead letter with an id: only what was a message can be sent again"
        ) from None
    return MessageEnvelope(
        topic=topic,
        event_id=event_id,
        event_type=letter.event_type,
        tenant_id=letter.tenant_id,
        key=letter.order_key,
        aggregate_id=letter.aggregate_id,
        aggregate_type=letter.aggregate_type,
        routing_key=letter.routing_key,
        schema_id=letter.schema_id,
        schema_version=letter.schema_version,
        source=letter.source,
        occurred_at=letter.occurred_at,
        metadata={k: v for k, v in about.items() if not k.startswith("dead_letter_")}
        | {REVIVED: letter.event_id},
        content_type=about.get("dead_letter_content_type", letter.content_type),
        body=letter.body,
    )


def _letter_id(message: MessageEnvelope, body: bytes, consumer_name: str) -> str:
    parts = (
        message.tenant_id,
        consumer_name,
        message.event_id,
        hashlib.sha256(body).hexdigest(),
        message.metadata.get(REVIVED, ""),
    )
    return str(uuid5(_LETTERS, "\x1f".join(parts)))


def _body(message: MessageEnvelope) -> bytes:
    try:
        return message.body
    except SerializationError:
        return b""  # an object of the caller's own, which never was a body


def _fit(own: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Join both; of *others* only what fits into the limits."""
    metadata = {name: _printable(value) for name, value in own.items()}
    size = sum(len(name) + len(value.encode()) for name, value in metadata.items())
    for name, value in others.items():
        text = _printable(value)
        more = len(name) + len(text.encode())
        if name in metadata:
            continue
        if size + more > MAX_METADATA_BYTES or len(metadata) >= MAX_METADATA - 1:
            metadata["dead_letter_truncated"] = "true"
            continue
        metadata[name] = text
        size += more
    check_metadata(metadata)
    return metadata


def _printable(value: str) -> str:
    return _UNPRINTABLE.sub(" ", value.encode("utf-8", "replace").decode())


def _name_or_none(value: str | None) -> str | None:
    try:
        return None if value is None else check_name("key", value, limit=MAX_NAME)
    except InvalidMessageError:
        return None
