"""What makes two payloads the same."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from semel.errors import SerializationError
from semel.serializers import JSON, loads_json, to_plain

if TYPE_CHECKING:
    from semel.envelope import MessageEnvelope


def payload_hash(payload: Any) -> str | None:
    """Return the SHA-256 of *payload*: of bytes as they are, of anything else as canonical JSON.

    Canonical: keys sorted, no white space, so that a producer that writes the same document in
    another way sends the same payload. None for what JSON cannot express.

    >>> payload_hash({"b": 1, "a": 2}) == payload_hash({"a": 2, "b": 1})
    True
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return hashlib.sha256(payload).hexdigest()
    try:
        text = json.dumps(
            payload, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=to_plain
        )
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    except (TypeError, ValueError, RecursionError):
        return None


def message_hash(message: MessageEnvelope) -> str | None:
    """Return the hash of the message's payload, or of its body if that is no JSON."""
    if is_json(message.content_type):
        try:
            return payload_hash(message.payload)
        except SerializationError:
            pass
    return payload_hash(message.body)


def is_json(content_type: str) -> bool:
    """Tell whether a body of this type is a JSON document."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def is_document(body: bytes) -> bool:
    """Tell whether *body* is JSON in UTF-8; databases refuse what only claims to be."""
    try:
        loads_json(body.decode())
    except (SerializationError, UnicodeDecodeError):
        return False
    return True
