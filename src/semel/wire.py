"""An envelope as a broker carries it: CloudEvents 1.0 headers and the payload's bytes.

===============================  ==================================================================
header                           field of the envelope
===============================  ==================================================================
`ce_id`, and plain `message_id`  `event_id`
`ce_source`                      `source`, else the name of the bus
`ce_type`, `ce_time`             `event_type`, `occurred_at` (RFC 3339, UTC, microseconds)
`ce_subject`                     `aggregate_id`
`ce_partitionkey`                `order_key`
`ce_tenantid`                    `tenant_id`
`ce_aggregatetype`               `aggregate_type`
`ce_routingkey`                  `routing_key`
`ce_dataschema`                  `schema_id`
`ce_schemaversion`               `schema_version`
`content-type`                   `content_type`
`ce_correlationid`               `metadata["correlation_id"]`
`ce_causationid`                 `metadata["causation_id"]`
`traceparent`, `tracestate`      the same entries of `metadata`
`ce_<name>`                      another entry of `metadata`, if *name* is free and `[a-z0-9]{1,20}`
`meta_<name>`                    every other entry of `metadata`, the value percent-encoded
===============================  ==================================================================

The prefix is the binding's: `ce_` for Kafka, `cloudEvents_` for AMQP, `ce-` for HTTP and NATS.
With `ce-` the values are percent-encoded as the HTTP binding asks for; elsewhere they are UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NoReturn, get_args
from urllib.parse import quote, unquote

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, InvalidMessageError, WireError
from semel.serializers import JSON, loads_json

Mode = Literal["binary", "structured", "raw"]

MODES: tuple[str, ...] = get_args(Mode)
STRUCTURED = "application/cloudevents+json"
MAX_HEADERS = 128
MAX_HEADER_BYTES = 32 * 1024

_RESERVED = frozenset(
    (
        *("specversion", "id", "source", "type", "subject", "time", "dataschema"),
        *("datacontenttype", "data", "partitionkey", "tenantid", "aggregatetype", "routingkey"),
        *("schemaversion", "correlationid", "causationid", "traceparent", "tracestate"),
    )
)
_TRACE = ("traceparent", "tracestate")
_RENAMED = {"correlation_id": "correlationid", "causation_id": "causationid"}
_EXTENSION = re.compile(r"[a-z0-9]{1,20}\Z")
_PERCENT = re.compile(r"[^!#$&-~]")  # what the HTTP binding escapes: space, ", % and non-ASCII
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True, repr=False)
class WireMessage:
    """What goes over the network: bytes, and headers that anybody may have written."""

    topic: str
    key: str | None
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        # Neither values of headers nor the body: a repr ends up in logs.
        return (
            f"WireMessage(topic={self.topic!r}, headers={sorted(self.headers)}, "
            f"body={len(self.body)} bytes)"
        )


@lru_cache(maxsize=16)
def _names(prefix: str) -> dict[str, str]:
    return {name: prefix + name for name in _RESERVED}


def encode(
    envelope: MessageEnvelope, *, source: str = "semel", prefix: str = "ce_", mode: Mode = "binary"
) -> WireMessage:
    """Return *envelope* for the wire.

    *binary*: the body is the payload as it is, everything else travels in headers.
    *structured*: one JSON document holds both. *raw*: the payload, its type and its id only.
    """
    key = envelope.order_key
    if mode == "binary":
        headers = _attributes(envelope, source, key, _names(prefix))
        headers["message_id"] = envelope.event_id
        headers["content-type"] = envelope.content_type
        _add_metadata(envelope, headers, headers, prefix)
        if prefix == "ce-":
            for name, value in headers.items():
                if name.startswith("ce-"):
                    headers[name] = _escape(value)
            _check_limits(headers)
        return WireMessage(envelope.topic, key, headers, envelope.body)
    plain = {"message_id": envelope.event_id, "content-type": envelope.content_type}
    if mode == "raw":
        return WireMessage(envelope.topic, key, plain, envelope.body)
    if mode == "structured":
        plain["content-type"] = STRUCTURED
        attributes = _attributes(envelope, source, key, _names(""))
        _add_metadata(envelope, attributes, plain, "")
        return WireMessage(envelope.topic, key, plain, _document(envelope, attributes))
    raise ConfigurationError(f"unknown mode {mode!r}: choose one of {', '.join(MODES)}")


def _attributes(
    envelope: MessageEnvelope, source: str, key: str | None, names: Mapping[str, str]
) -> dict[str, str]:
    attributes = {
        names["specversion"]: "1.0",
        names["id"]: envelope.event_id,
        names["source"]: envelope.source or source,
        names["type"]: envelope.event_type,
        names["time"]: _format_time(envelope.occurred_at),
        names["tenantid"]: envelope.tenant_id,
        names["schemaversion"]: str(envelope.schema_version),
    }
    if key is not None:
        attributes[names["partitionkey"]] = key
    if envelope.aggregate_id is not None:
        attributes[names["subject"]] = envelope.aggregate_id
    if envelope.aggregate_type is not None:
        attributes[names["aggregatetype"]] = envelope.aggregate_type
    if envelope.routing_key is not None:
        attributes[names["routingkey"]] = envelope.routing_key
    if envelope.schema_id is not None:
        attributes[names["dataschema"]] = envelope.schema_id
    return attributes


def _add_metadata(
    envelope: MessageEnvelope, attributes: dict[str, str], plain: dict[str, str], prefix: str
) -> None:
    # A stored row without metadata says so in two characters: no need to parse them.
    if envelope.__dict__.get("metadata_json") == "{}":
        return
    for name, value in envelope.metadata.items():
        if name in _RENAMED:
            attributes[prefix + _RENAMED[name]] = value
        elif name in _TRACE and value.isascii() and value.isprintable():
            plain[name] = value
        elif name not in _RESERVED and _EXTENSION.match(name):
            attributes[prefix + name] = value
        else:
            plain["meta_" + name] = escaped = _escape(value)
            if escaped is not value:
                _check_limits(plain)


def _document(envelope: MessageEnvelope, attributes: Mapping[str, str]) -> bytes:
    head = {**attributes, "datacontenttype": envelope.content_type}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1].encode()
    if _is_json(envelope.content_type) and _is_document(envelope.body):
        return b'%b,"data":%b}' % (text, envelope.body)
    return b'%b,"data_base64":"%b"}' % (text, base64.b64encode(envelope.body))


def _is_document(body: bytes) -> bool:
    # Bytes that only claim to be JSON would break out of the document that surrounds them.
    try:
        loads_json(body.decode())
    except ValueError:
        return False
    return True


def decode(wire: WireMessage) -> MessageEnvelope:
    """Return the message in *wire*, from semel or any other producer.

    Understands CloudEvents 1.0, binary with any binding's prefix and structured JSON, and plain
    bodies with a `message_id` (or `bh-message-id`) header, an optional `event_type` header.
    Raises `WireError` if it is none of these, breaks a limit, or has no id: none is invented.
    """
    _check_limits(wire.headers)
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
        if name not in _RESERVED:
            metadata.setdefault(name, value)
    for name in _TRACE:
        if (found := plain.get(name, attributes.get(name))) is not None:
            metadata.setdefault(name, found)
    for name, attribute in _RENAMED.items():
        if (found := attributes.get(attribute, plain.get(name))) is not None:
            metadata.setdefault(name, found)


def _check_limits(headers: Mapping[str, str]) -> None:
    if len(headers) > MAX_HEADERS:
        raise WireError(f"the message has {len(headers)} headers, at most {MAX_HEADERS} are read")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise WireError("the message has a header that is not text")
        size += len(name) + len(value)
        if not value.isascii():
            size += len(value.encode("utf-8", "surrogatepass")) - len(value)
    if size > MAX_HEADER_BYTES:
        raise WireError(f"the headers are {size} bytes in all, at most {MAX_HEADER_BYTES} are read")


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
    if isinstance(value, str) and not _is_json(attributes.get("datacontenttype") or JSON):
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


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def _escape(value: str) -> str:
    if not _PERCENT.search(value):
        return value
    return quote(value, safe="!#$&'()*+,/:;=?@[]<>\\^`{|}~")


def _unescape(value: str) -> str:
    if "%" not in value:
        return value
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise WireError("a percent-encoded header is not UTF-8") from None


def _format_time(moment: datetime) -> str:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    second = _format_second(
        *(moment.year, moment.month, moment.day),
        *(moment.hour, moment.minute, moment.second),
    )
    return "%s%06dZ" % (second, moment.microsecond)  # noqa: UP031


# The messages of a batch are of a few seconds; formatting each takes a third of all encoding.
@lru_cache(maxsize=64)
def _format_second(*fields: int) -> str:
    return "%04d-%02d-%02dT%02d:%02d:%02d." % fields  # noqa: UP031


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
