"""From an envelope to the wire."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from urllib.parse import quote

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError
from semel.serializers import loads_json
from semel.wire.message import (
    MODES,
    RENAMED,
    RESERVED,
    STRUCTURED,
    TRACE,
    Mode,
    WireMessage,
    check_limits,
    is_json,
)

_EXTENSION = re.compile(r"[a-z0-9]{1,20}\Z")
_make = tuple.__new__  # half the time of calling a NamedTuple
_PERCENT = re.compile(r"[^!#$&-~]")  # what the HTTP binding escapes: space, ", % and non-ASCII


def encode(
    envelope: MessageEnvelope, *, source: str = "semel", prefix: str = "ce_", mode: Mode = "binary"
) -> WireMessage:
    """Return *envelope* for the wire.

    *binary*: the body is the payload as it is, everything else travels in headers.
    *structured*: one JSON document holds both. *raw*: the payload, its type and its id only.
    """
    own = envelope.__dict__
    key = own.get("key") or envelope.order_key
    if mode == "binary":
        headers = _attributes(envelope, source, key, prefix, envelope.content_type)
        # A stored row without metadata says so in two characters: no need to parse them.
        if own.get("metadata_json") != "{}" and envelope.metadata:
            _add_metadata(envelope.metadata, headers, headers, prefix)
        if prefix == "ce-":
            for name, value in headers.items():
                if name.startswith("ce-"):
                    headers[name] = _escape(value)
            check_limits(headers)
        # Faster than asking for a body that is not made yet.
        document = None if "body" in own else own.get("document")
        body = envelope.body if document is None else document.encode()
        return _make(WireMessage, (own["topic"], key, headers, body))
    plain = {"message_id": envelope.event_id, "content-type": envelope.content_type}
    if mode == "raw":
        return WireMessage(envelope.topic, key, plain, envelope.body)
    if mode == "structured":
        plain["content-type"] = STRUCTURED
        attributes = _attributes(envelope, source, key, "", None)
        _add_metadata(envelope.metadata, attributes, plain, "")
        return WireMessage(envelope.topic, key, plain, _document(envelope, attributes))
    raise ConfigurationError(f"unknown mode {mode!r}: choose one of {', '.join(MODES)}")


def _attributes(
    envelope: MessageEnvelope, source: str, key: str | None, prefix: str, content_type: str | None
) -> dict[str, str]:
    # To ask the envelope for each of its fields would take twice as long.
    own = envelope.__dict__
    get = own.get
    subject, event_id = get("aggregate_id"), own["event_id"]
    names, shared = _shared(
        prefix,
        content_type,
        key is None,
        subject is None,
        get("source") or source,
        own["event_type"],
        envelope.tenant_id,
        envelope.schema_version,
        get("aggregate_type"),
        get("schema_id"),
    )
    attributes = shared.copy()
    id_name, time_name, key_name, subject_name = names
    attributes[id_name] = event_id
    attributes[time_name] = _format_time(own["occurred_at"])
    if key is not None:
        attributes[key_name] = key
    if subject is not None:
        attributes[subject_name] = subject
    if (routing_key := get("routing_key")) is not None:
        attributes[prefix + "routingkey"] = routing_key
    if content_type is not None:
        attributes["message_id"] = event_id
    return attributes


# Messages of a kind have most headers in common, and a dictionary is copied faster than it grows.
@lru_cache(maxsize=1024)
def _shared(  # noqa: PLR0917  positional, for the speed of the cache
    prefix: str,
    content_type: str | None,
    without_key: bool,
    without_subject: bool,
    source: str,
    event_type: str,
    tenant_id: str,
    schema_version: int,
    aggregate_type: str | None,
    schema_id: str | None,
) -> tuple[tuple[str, str, str, str], dict[str, str]]:
    """Return the names of the attributes that differ, and all attributes, without those values."""
    names = (prefix + "id", prefix + "time", prefix + "partitionkey", prefix + "subject")
    attributes = {
        prefix + "specversion": "1.0",
        names[0]: "",
        prefix + "source": source,
        prefix + "type": event_type,
        names[1]: "",
        prefix + "tenantid": tenant_id,
        prefix + "schemaversion": str(schema_version),
    }
    if not without_key:
        attributes[names[2]] = ""
    if not without_subject:
        attributes[names[3]] = ""
    if aggregate_type is not None:
        attributes[prefix + "aggregatetype"] = aggregate_type
    if schema_id is not None:
        attributes[prefix + "dataschema"] = schema_id
    if content_type is not None:
        attributes |= {"message_id": "", "content-type": content_type}
    return names, attributes


def _add_metadata(
    metadata: Mapping[str, str], attributes: dict[str, str], plain: dict[str, str], prefix: str
) -> None:
    for name, value in metadata.items():
        if name in RENAMED:
            attributes[prefix + RENAMED[name]] = value
        elif name in TRACE and value.isascii() and value.isprintable():
            plain[name] = value
        elif name not in RESERVED and _EXTENSION.match(name):
            attributes[prefix + name] = value
        else:
            plain["meta_" + name] = escaped = _escape(value)
            if escaped is not value:
                check_limits(plain)


def _document(envelope: MessageEnvelope, attributes: Mapping[str, str]) -> bytes:
    head = {**attributes, "datacontenttype": envelope.content_type}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1].encode()
    if is_json(envelope.content_type) and _is_document(envelope.body):
        return b'%b,"data":%b}' % (text, envelope.body)
    return b'%b,"data_base64":"%b"}' % (text, base64.b64encode(envelope.body))


def _is_document(body: bytes) -> bool:
    # Bytes that only claim to be JSON would break out of the document that surrounds them.
    try:
        loads_json(body.decode())
    except ValueError:
        return False
    return True


def _escape(value: str) -> str:
    if not _PERCENT.search(value):
        return value
    return quote(value, safe="!#$&'()*+,/:;=?@[]<>\\^`{|}~")


# The days of a batch are few, and the rest of a time is four of these: to format it all anew would
# take as long as the other headers.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTES = [f"T{number // 60:02}:{number % 60:02}:" for number in range(24 * 60)]
_SECONDS = [f"{number:02}." for number in range(60)]
_THOUSANDTHS = [f"{number:03}" for number in range(1000)]


def _format_time(moment: datetime) -> str:
    since = moment - _EPOCH
    seconds, micros = since.seconds, since.microseconds
    return (
        f"{_format_day(since.days)}{_MINUTES[seconds // 60]}{_SECONDS[seconds % 60]}"
        f"{_THOUSANDTHS[micros // 1000]}{_THOUSANDTHS[micros % 1000]}Z"
    )


@lru_cache(maxsize=1024)
def _format_day(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).date().isoformat()
