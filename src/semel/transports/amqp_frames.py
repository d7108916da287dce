"""A message as AMQP 0-9-1 frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct
from typing import Any

from pamqp import commands as spec, frame as pamqp_frame
from pamqp.header import ContentHeader

MAX_SHORT = 255  # bytes of an exchange, a queue, a routing key and most properties
_MAX_CACHED = 10_000
_FRAME_MAX = 131_072
_OVERHEAD = 8  # type, channel and size before a frame's payload, its end mark behind
_FRAME = Struct("!BHI").pack
_HEADER = Struct("!BHIHHQH").pack
_CONTENT_TYPE, _MESSAGE_ID = 1 << 15, 1 << 7
_FLAGS = _CONTENT_TYPE | 1 << 13 | 1 << 12 | _MESSAGE_ID | 1 << 6  # headers, mode, timestamp
_FIXED = 14 + 4 + 1 + 8  # class, weight, body size, flags; size of the table; mode; timestamp
_PERSISTENT = b"\x02"
_BYTE = [bytes((number,)) for number in range(256)]
_UNIQUE = frozenset(("cloudEvents_id", "cloudEvents_time"))  # not worth remembering


@dataclass(slots=True)
class Outgoing:
    """What is published. Properties that are too long for AMQP travel among the headers."""

    exchange: str
    routing_key: str
    message_id: str
    content_type: str
    timestamp: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def identity(self) -> tuple[str, str, str]:
        """What the broker repeats when it returns the message."""
        return self.message_id, self.exchange, self.routing_key

    def properties(self) -> spec.Basic.Properties:
        """Return the properties as pamqp wants them."""
        headers: dict[str, Any] = dict(self.headers)
        return spec.Basic.Properties(
            content_type=_short(self.content_type, "content-type", headers),
            message_id=_short(self.message_id, "message_id", headers),
            headers=headers,
            delivery_mode=2,
            timestamp=datetime.fromtimestamp(self.timestamp, UTC),
        )


def _short(value: str, name: str, headers: dict[str, Any]) -> str | None:
    if len(value.encode()) <= MAX_SHORT:
        return value
    headers[name] = value
    return None


def returned_id(header: ContentHeader) -> object:
    """Return the message id of a message that the broker gave back."""
    properties = header.properties
    return properties.message_id or (properties.headers or {}).get("message_id")


class Encoder:
    """Turns messages into the frames of one channel; each is persistent."""

    def __init__(self, channel: int, frame_max: int | None, *, mandatory: bool) -> None:
        self._channel = channel
        self._mandatory = mandatory
        self._max = (frame_max or _FRAME_MAX) - _OVERHEAD
        self._methods: dict[tuple[str, str], bytes] = {}
        self._headers: dict[tuple[str, str], bytes] = {}
        self._names: dict[str, bytes] = {}

    def encode(self, message: Outgoing) -> bytes:
        """Return the frames; `ValueError` if the properties do not fit into one."""
        route = (message.exchange, message.routing_key)
        method = self._methods.get(route) or self._method(route)
        body, headers, flags = message.body, self._headers, _FLAGS
        table = [headers.get(item) or self._header(item) for item in message.headers.items()]
        content_type, message_id = message.content_type.encode(), message.message_id.encode()
        if len(content_type) > MAX_SHORT:
            flags ^= _CONTENT_TYPE
            table.append(self._header(("content-type", message.content_type)))
            content_type = b""
        else:
            content_type = _BYTE[len(content_type)] + content_type
        if len(message_id) > MAX_SHORT:
            flags ^= _MESSAGE_ID
            table.append(self._header(("message_id", message.message_id)))
            message_id = b""
        else:
            message_id = _BYTE[len(message_id)] + message_id
        encoded = b"".join(table)
        size = _FIXED + len(content_type) + len(encoded) + len(message_id)
        if size > self._max:
            raise ValueError(f"{size} bytes of properties do not fit into one frame")
        header = _HEADER(2, self._channel, size, 60, 0, len(body), flags)
        parts = [
            *(method, header, content_type, len(encoded).to_bytes(4, "big"), encoded, _PERSISTENT),
            *(message_id, message.timestamp.to_bytes(8, "big"), b"\xce"),
        ]
        for start in range(0, len(body), self._max):
            piece = body[start : start + self._max]
            parts += (_FRAME(3, self._channel, len(piece)), piece, b"\xce")
        return b"".join(parts)

    def _method(self, route: tuple[str, str]) -> bytes:
        if len(self._methods) >= _MAX_CACHED:
            self._methods.clear()
        publish = spec.Basic.Publish(
            exchange=route[0], routing_key=route[1], mandatory=self._mandatory
        )
        method = self._methods[route] = pamqp_frame.marshal(publish, self._channel)
        return method

    def _header(self, item: tuple[str, str]) -> bytes:
        """Return an entry of the table of headers; most of them come again and again."""
        name, value = item[0], item[1].encode()
        begin = self._names.get(name) or self._name(name)
        encoded = b"%b%b%b" % (begin, len(value).to_bytes(4, "big"), value)
        if name not in _UNIQUE and len(value) <= MAX_SHORT:
            if len(self._headers) >= _MAX_CACHED:
                self._headers.clear()
            self._headers[item] = encoded
        return encoded

    def _name(self, name: str) -> bytes:
        if len(self._names) >= _MAX_CACHED:
            self._names.clear()
        encoded = name.encode()
        self._names[name] = begin = bytes((len(encoded),)) + encoded + b"S"
        return begin
