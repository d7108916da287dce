"""Payload to bytes and back."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from semel.errors import ConfigurationError, SerializationError

if TYPE_CHECKING:
    from semel.envelope import MessageEnvelope
    from semel.protocols import Serializer

JSON = "application/json"
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class JsonSerializer:
    """Strict JSON by the standard library: what goes out can be read back by everybody.

    Dataclasses, pydantic models and msgspec structs are encoded as objects; dates in ISO 8601,
    `Decimal` and `UUID` as strings. NaN, infinities, NUL characters and lone surrogates raise.
    """

    content_type = JSON

    def dumps(self, payload: Any) -> bytes:
        """Encode *payload*, or raise `SerializationError`."""
        try:
            text = _encoder.encode(payload)
            body = text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(_reason(error)) from None
        refuse_nul(text)
        return body

    def loads(self, data: bytes) -> Any:
        """Decode *data*, or raise `SerializationError`."""
        return loads_json(data)


class Encoded(NamedTuple):
    """A payload in bytes, and what its reader has to know about them."""

    body: bytes
    content_type: str
    schema_id: str | None = None
    schema_version: int = 1


def encode(serializer: Serializer, message: MessageEnvelope) -> Encoded:
    """Encode the payload of *message*.

    A serializer that needs more than the payload, such as the type of the event, has a method
    `encode(message)` that returns an `Encoded`, and `decode(message)` that returns a payload.
    """
    own = getattr(serializer, "encode", None)
    if own is not None:
        encoded: Encoded = own(message)
        return encoded
    return Encoded(
        serializer.dumps(message.payload),
        serializer.content_type,
        message.schema_id,
        message.schema_version,
    )


class Serializers:
    """Serializers by the content type that they read; a consumer has one of these.

    The `aliases` of a serializer, if it has any, are other names of its content type. If one of
    them is `exclusive`, what none of them reads cannot be decoded: whoever takes a signature away
    must not get through.
    """

    def __init__(self, serializers: Iterable[Serializer] = ()) -> None:
        self._by_type: dict[str, Serializer] = {}
        for serializer in serializers:
            for name in (serializer.content_type, *getattr(serializer, "aliases", ())):
                if self._by_type.setdefault(bare_type(name), serializer) is not serializer:
                    raise ConfigurationError(f"two serializers read {name}: give one of them")
        self.must_prepare = any(hasattr(s, "prepare") for s in self._by_type.values())
        self._exclusive = any(getattr(s, "exclusive", False) for s in self._by_type.values())

    def attach(self, message: MessageEnvelope) -> MessageEnvelope:
        """Return *message* with a payload that its serializer decodes when it is asked for.

        Without a serializer for its content type it is returned as it is.
        """
        serializer = self._by_type.get(bare_type(message.content_type))
        if serializer is None:
            return message.decoded_by(_refuse) if self._exclusive else message
        own = getattr(serializer, "decode", None)
        return message.decoded_by(own or (lambda it: serializer.loads(it.body)))

    def reads(self, content_type: str) -> bool:
        """Tell whether bodies of *content_type* are decoded, or refused, here."""
        return self._exclusive or bare_type(content_type) in self._by_type

    async def prepare(self, message: MessageEnvelope) -> None:
        """Let the serializer fetch what decoding needs; raises if it cannot be had now."""
        serializer = self._by_type.get(bare_type(message.content_type))
        own = getattr(serializer, "prepare", None)
        if own is not None:
            await own(message)


def _refuse(_: MessageEnvelope) -> Any:
    raise SerializationError("neither signed nor encrypted as this consumer demands")


Upcast = Callable[[Any], Any]


class Upcasters:
    """Functions that turn a payload of one version into one of the next.

    Handlers then see the newest version only, whatever is still on its way.

    >>> upcasters = Upcasters().register("OrderPlaced", 1, lambda old: {**old, "currency": "EUR"})
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[str, int], Upcast] = {}

    def register(self, event_type: str, from_version: int, function: Upcast) -> Self:
        """Let *function* make version *from_version* + 1 of *event_type* out of *from_version*."""
        if from_version < 1:
            raise ConfigurationError("from_version is at least 1")
        if (event_type, from_version) in self._functions:
            raise ConfigurationError(
                f"there is an upcaster from version {from_version} of {event_type} already"
            )
        self._functions[event_type, from_version] = function
        return self

    def apply(self, message: MessageEnvelope) -> MessageEnvelope:
        """Return *message* with the newest version of its payload, or as it is.

        *message* itself is left alone: its payload is what was sent.
        """
        version = message.schema_version
        if (message.event_type, version) not in self._functions:
            return message
        payload = copy.deepcopy(message.payload)
        while (function := self._functions.get((message.event_type, version))) is not None:
            payload = function(payload)
            version += 1
        return message.upcast(payload, version)


def bare_type(content_type: str) -> str:
    """Return *content_type* in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


def refuse_nul(text: str) -> None:
    """Raise `SerializationError` if the JSON in *text* has a NUL character in a string."""
    if "\\u0000" in text and _NUL.search(text):
        raise SerializationError(
            "the payload contains a NUL character, which databases and brokers reject: "
            "remove it, or send the data base64-encoded"
        )


def loads_json(data: bytes | str) -> Any:
    """Decode strict JSON."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"not valid JSON ({type(error).__name__})") from None


def to_plain(value: Any) -> Any:
    """Turn what `json` cannot encode into something that it can; `TypeError` otherwise."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(type(value), "__struct_fields__"):
        return {name: getattr(value, name) for name in type(value).__struct_fields__}
    raise TypeError(
        f"{type(value).__name__} is not JSON: pass dicts, lists, strings, numbers, dates, "
        "a dataclass, a pydantic model or a msgspec struct"
    )


_encoder = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=to_plain
)


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "the payload contains a lone surrogate, which is not valid Unicode text"
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "the payload is nested too deeply or refers to itself"
    if "JSON compliant" in str(error):
        return "the payload contains NaN or an infinity, which JSON does not have"
    if isinstance(error, TypeError):
        return f"the payload cannot be encoded: {error}"
    return f"the payload cannot be encoded ({type(error).__name__})"
