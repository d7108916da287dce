"""From the wire to an envelope: whatever a producer may have written."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import unquote

from semel.envelope import MessageEnvelope
from semel.errors import InvalidMessageError, WireError
from semel.serializers import JSON
from semel.wire.message import (
    RENAMED,
    RESERVED,
    STRUCTURED,
    TRACE,
    WireMessage,
    check_limits,
    is_json,
)

_SPACE = re.compile(r"[ \t\r\n]*")


def decode(wire: WireMessage) -> MessageEnvelope:
    """Return the message in *wire*, from semel or any other producer.

    Understands CloudEvents 1.0, binary with any binding's prefix and structured JSON, and plain
    bodies with a `message_id` (or `bh-message-id`) header, an optional `event_type` header.
    Raises `WireError` if it is none of these, breaks a limit, or has no id: none is invented.
    """
    check_limits(wire.headers)
    attributes, plain, metadata = _sort_headers(wire.headers)
    content_type = plain.get("content-type") or JSON
    body = wire.body
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("application/cloudevents"):
        if kind != STRUCTURED:
            raise WireError(
                f"only {STRUCTURED} is understood of the structured CloudEvents formats"
            )
        attributes, body = _read_document(body)
        content_type = attributes.get("datacontenttype") or JSON
    version = attributes.get("specversion")
    if version is not None and not version.startswith("1."):
        raise WireError("the message follows another major version of CloudEvents than 1")
    message_id = attributes.get("id") or plain.get("message_id") or plain.get("bh-message-id")
    if not message_id:
        raise WireError("the message has no id: neither a CloudEvents id nor a message_id header")
    _collect_metadata(metadata, attributes, plain)
    subject, kind_of = attributes.get("subject"), attributes.get("aggregatetype")
    routing_key = attributes.get("routingkey")
    key = attributes.get("partitionkey") or wire.key or None
    implied = routing_key if subject is None else f"{kind_of}:{subject}" if kind_of else subject
    try:
        fields: dict[str, Any] = {}
        if "time" in attributes:
            fields["occurred_at"] = _parse_time(attributes["time"])
        return MessageEnvelope(
            topic=wire.topic,
            event_id=message_id,
            event_type=attributes.get("type") or plain.get("event_type") or wire.topic,
            tenant_id=attributes.get("tenantid", "default"),
            key=None if key == implied else key,
            aggregate_id=subject,
            aggregate_type=kind_of,
            routing_key=routing_key,
            schema_id=attributes.get("dataschema"),
            schema_version=_parse_version(attributes.get("schemaversion", "1")),
            source=attributes.get("source"),
            metadata=metadata,
            content_type=content_type,
            body=body,
            **fields,
        )
    except InvalidMessageError as error:
        raise WireError(f"not a message that semel can hold: {error}") from None


def _collect_metadata(
    metadata: dict[str, str], attributes: Mapping[str, str], plain: Mapping[str, str]
) -> None:
    for name, value in attributes.items():
        if name not in RESERVED:
            metadata.setdefault(name, value)
    for name in TRACE:
        if (found := plain.get(name, attributes.get(name))) is not None:
            metadata.setdefault(name, found)
    for name, attribute in RENAMED.items():
        if (found := attributes.get(attribute, plain.get(name))) is not None:
            metadata.setdefault(name, found)


def _sort_headers(
    headers: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    attributes: dict[str, str] = {}
    plain: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith("ce_"):
            group, short, text = attributes, name[3:], value
        elif name.startswith("meta_"):
            group, short, text = metadata, name[5:], _unescape(value)
        elif name.startswith(("cloudEvents_", "cloudEvents:")):
            group, short, text = attributes, name[12:], value
        elif name[:3].lower() == "ce-":
            group, short, text = attributes, name[3:].lower(), _unescape(value)
        else:
            plain.setdefault(name.lower(), value)
            continue
        if group.setdefault(short, text) != text:
            raise WireError("two headers give different values to one attribute")
    return attributes, plain, metadata


def _read_document(body: bytes) -> tuple[dict[str, str], bytes]:
    try:
        members = _members(body.decode())
    except (ValueError, RecursionError):
        raise WireError(f"the body is not the JSON object that {STRUCTURED} promises") from None
    attributes: dict[str, str] = {}
    for name, (value, _) in members.items():
        if name in ("data", "data_base64") or value is None:
            continue
        if not isinstance(value, str | int):
            raise WireError("an attribute of the CloudEvent is neither text nor number nor boolean")
        # bool is an int in Python; CloudEvents writes it in lower case.
        attributes[name] = str(value).lower() if isinstance(value, bool) else str(value)
    encoded = members.get("data_base64", (None, ""))[0]
    if encoded is not None:
        try:
            return attributes, base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise WireError("data_base64 of the CloudEvent is not base64") from None
    value, text = members.get("data", (None, "null"))
    if isinstance(value, str) and not is_json(attributes.get("datacontenttype") or JSON):
        text = value
    try:
        return attributes, text.encode()
    except UnicodeEncodeError:
        raise WireError("data of the CloudEvent contains a lone surrogate") from None


def _refuse(_: str) -> NoReturn:
    raise ValueError


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """Split a JSON object into its members, each with its text as it was written.

    The payload keeps its exact bytes, which parsing and writing it again would not.
    """
    members: dict[str, tuple[Any, str]] = {}
    at = _expect(text, 0, "{")
    end = text.startswith("}", at)
    while not end:
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str) or name in members:
            raise ValueError
        at = _expect(text, at, ":")
        value, stop = _DECODER.raw_decode(text, at)
        members[name] = (value, text[at:stop])
        at = _skip(text, stop)
        end = text.startswith("}", at)
        if not end:
            at = _expect(text, at, ",")
    if _skip(text, at + 1) != len(text):
        raise ValueError
    return members


def _expect(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if not text.startswith(mark, at):
        raise ValueError
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _unescape(value: str) -> str:
    if "%" not in value:
        return value
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise WireError("a percent-encoded header is not UTF-8") from None


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.upper())
        if "T" in text.upper() and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise WireError("the time of the CloudEvent is not RFC 3339, such as 2026-01-31T12:00:00Z")


def _parse_version(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return int(text)
    raise WireError("schemaversion is not a number of at most ten digits")
