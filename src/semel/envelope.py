"""One message: what the row stores, the broker carries and the handler receives."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from semel.errors import InvalidMessageError, SerializationError
from semel.serializers import JSON, JsonSerializer, loads_json

MAX_NAME = 255
MAX_TENANT = 64
MAX_METADATA = 64
MAX_METADATA_BYTES = 8192
MAX_VERSION = 2**31 - 1
DEFAULT_TENANT = "default"

_OPTIONAL_NAMES = (
    "key",
    "aggregate_id",
    "aggregate_type",
    "routing_key",
    "schema_id",
    "source",
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_METADATA_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_METADATA_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Given by factories: a plain default would be a class attribute and hide `__getattr__`.
_MISSING: Any = object()


def new_event_id() -> str:
    """Return a UUIDv7: unique, and close to the others of its time in an index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = (value & ~(0xF << 76)) | (7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MessageEnvelope:
    """An immutable message. `event_id` is the deduplication key everywhere.

    `payload` and `body` are two views of one thing: whichever is missing is made when asked for.

    >>> MessageEnvelope(topic="orders", payload={"id": 1}).body
    b'{"id":1}'
    """

    topic: str
    payload: Any = field(default_factory=lambda: _MISSING)
    event_type: str = ""
    event_id: str = field(default_factory=new_event_id)
    tenant_id: str = DEFAULT_TENANT
    key: str | None = None
    aggregate_id: str | None = None
    aggregate_type: str | None = None
    routing_key: str | None = None
    schema_id: str | None = None
    schema_version: int = 1
    source: str | None = None
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON
    body: bytes = field(default_factory=lambda: _MISSING)

    def __post_init__(self) -> None:
        own = self.__dict__
        if own["payload"] is _MISSING:
            del own["payload"]
            if own["body"] is _MISSING:
                raise InvalidMessageError("a message needs a payload, or a body")
        if own["body"] is _MISSING:
            del own["body"]
        if not self.event_type:
            own["event_type"] = self.topic
        validate(self)
        own["metadata"] = dict(self.metadata)

    @classmethod
    def restore(cls, fields: Mapping[str, Any]) -> MessageEnvelope:
        """Make an envelope of fields that were validated before, such as a stored row.

        *fields* holds `metadata_json` (text) in place of `metadata`, and `body` or `document`
        (text) in place of `payload`: the relay never parses.
        """
        envelope = object.__new__(cls)
        envelope.__dict__.update(fields)
        return envelope

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only when the attribute is not there yet.
            own = self.__dict__
            if name == "payload":
                value = self._decode()
            elif name == "body":
                document = own.get("document")
                value = (
                    document.encode()
                    if document is not None
                    else JsonSerializer().dumps(own["payload"])
                )
            elif name == "metadata" and "metadata_json" in own:
                value = loads_json(own["metadata_json"])
            else:
                raise AttributeError(name)
            own[name] = value
            return value

    def decoded_by(self, decoder: Callable[[MessageEnvelope], Any]) -> MessageEnvelope:
        """Return this message with a payload that *decoder* makes of it when it is asked for."""
        other = self.restore(self.__dict__)
        other.body  # noqa: B018  from here on the payload is made of it
        other.__dict__.pop("payload", None)
        other.__dict__["decoder"] = decoder
        return other

    def upcast(self, payload: Any, schema_version: int) -> MessageEnvelope:
        """Return this message as it reads in a newer version; `body` stays as it was sent."""
        other = self.restore(self.__dict__)
        other.body  # noqa: B018  it would be made of the new payload later
        other.__dict__.update(payload=payload, schema_version=schema_version)
        return other

    def _decode(self) -> Any:
        decoder = self.__dict__.get("decoder")
        if decoder is not None:
            return decoder(self)
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind == JSON or kind.endswith("+json"):
            return loads_json(self.__dict__.get("document") or self.body)
        raise SerializationError(
            f"no serializer for content type {self.content_type!r}: "
            "read `body`, or give the consumer a serializer for it"
        )

    @property
    def order_key(self) -> str | None:
        """What must stay in order: `key`, else the aggregate, else `routing_key`."""
        if self.key is not None:
            return self.key
        if self.aggregate_id is not None:
            if self.aggregate_type is None:
                return self.aggregate_id
            return f"{self.aggregate_type}:{self.aggregate_id}"
        return self.routing_key

    @property
    def correlation_id(self) -> str | None:
        """The id of the conversation that this message belongs to."""
        return self.metadata.get("correlation_id")

    @property
    def causation_id(self) -> str | None:
        """The id of the message or request that caused this one."""
        return self.metadata.get("causation_id")

    @property
    def user_id(self) -> str | None:
        """Who did it."""
        return self.metadata.get("user_id")

    @property
    def version(self) -> str:
        """`schema_version` as text, as integration events carry it."""
        return str(self.schema_version)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageEnvelope):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.tenant_id, self.event_id))

    def __repr__(self) -> str:
        # Neither payload nor metadata: a repr ends up in logs.
        return (
            f"MessageEnvelope(topic={self.topic!r}, event_type={self.event_type!r}, "
            f"event_id={self.event_id!r}, tenant_id={self.tenant_id!r}, key={self.order_key!r})"
        )

    def _identity(self) -> tuple[Any, ...]:
        return (
            self.event_id,
            self.tenant_id,
            self.topic,
            self.event_type,
            self.order_key,
            self.aggregate_id,
            self.aggregate_type,
            self.routing_key,
            self.schema_id,
            self.schema_version,
            self.source,
            self.occurred_at,
            dict(self.metadata),
            self.content_type,
            self.body,
        )


def validate(envelope: MessageEnvelope) -> None:
    """Raise `InvalidMessageError` for a field that a database or a broker would mangle."""
    check_name("topic", envelope.topic)
    check_name("event_type", envelope.event_type)
    check_name("event_id", envelope.event_id)
    check_tenant(envelope.tenant_id)
    own = envelope.__dict__
    for name in _OPTIONAL_NAMES:
        if own[name] is not None:
            check_name(name, own[name])
    if own["key"] is None and None not in (own["aggregate_type"], own["aggregate_id"]):
        # Made of two, it may be too long.
        check_name("order key (aggregate_type:aggregate_id)", envelope.order_key)
    check_name("content_type", envelope.content_type)
    version: object = envelope.schema_version
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= MAX_VERSION:
        raise InvalidMessageError(f"schema_version must be an integer from 1 to {MAX_VERSION}")
    body: object = own.get("body", b"")
    if not isinstance(body, bytes):
        raise InvalidMessageError(f"body must be bytes, not {type(body).__name__}")
    moment: object = envelope.occurred_at
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidMessageError(
            "occurred_at must be a datetime with a timezone, such as datetime.now(UTC)"
        )
    if moment.tzinfo is not UTC:
        try:
            moment.astimezone(UTC)
        except OverflowError:
            raise InvalidMessageError("occurred_at is not within the years 1 to 9999") from None
    check_metadata(envelope.metadata)


def check_name(what: str, value: object, *, limit: int = MAX_NAME) -> str:
    """Return *value* if it is a non-empty, printable string of at most *limit* characters."""
    if type(value) is str and 0 < len(value) <= limit and value.isascii() and value.isprintable():
        return value  # as nearly all are
    if not isinstance(value, str):
        raise InvalidMessageError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidMessageError(f"{what} must not be empty")
    if len(value) > limit:
        raise InvalidMessageError(f"{what} has {len(value)} characters, the limit is {limit}")
    if _CONTROL.search(value):
        raise InvalidMessageError(f"{what} contains a control character (such as CR, LF or NUL)")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidMessageError(f"{what} contains a lone surrogate") from None
    return value


def check_tenant(value: object) -> str:
    """Return *value* if it can be a tenant id."""
    return check_name("tenant_id", value, limit=MAX_TENANT)


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise for names or values that cannot travel as message headers."""
    if not isinstance(metadata, Mapping):
        raise InvalidMessageError(
            f"metadata must be a mapping of str to str, not {type(metadata).__name__}"
        )
    if not metadata:
        return
    if len(metadata) > MAX_METADATA:
        raise InvalidMessageError(f"metadata has {len(metadata)} entries, at most {MAX_METADATA}")
    size = 0
    for name, value in metadata.items():
        if not isinstance(name, str) or not _METADATA_NAME.match(name):
            raise InvalidMessageError(
                "a metadata name must be 1 to 128 letters, digits, '_', '.' or '-'"
            )
        if not isinstance(value, str):
            raise InvalidMessageError(
                f"metadata[{name!r}] must be a str, not {type(value).__name__}"
            )
        if _METADATA_VALUE.search(value):
            raise InvalidMessageError(
                f"metadata[{name!r}] contains a control character (such as CR, LF or NUL)"
            )
        try:
            size += len(name) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidMessageError(f"metadata[{name!r}] contains a lone surrogate") from None
    if size > MAX_METADATA_BYTES:
        raise InvalidMessageError(
            f"metadata is {size} bytes in all, the limit is {MAX_METADATA_BYTES}: "
            "large data belongs into the payload"
        )
