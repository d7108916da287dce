"""Protocol buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel.codecs.records import Versions, to_record
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, SerializationError, missing_extra
from semel.serializers import Encoded

try:
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError, EncodeError, Message
except ImportError as missing:
    raise ImportError(missing_extra("Protobuf", "protobuf")) from missing

Class = type[Message]


class ProtobufSerializer:
    """Protocol buffers, by one message class, or by one for each type of event.

    *by_type* gives a type its class, or a list of its versions, oldest first. A payload is a
    message of that class, or something with the same members; it is decoded as a message, or as
    a dictionary with *as_dict*. `schema_id` is the full name of the message.

    >>> serializer = ProtobufSerializer(by_type={"OrderPlaced": OrderPlaced})   # doctest: +SKIP
    """

    content_type = "application/protobuf"
    aliases = ("application/x-protobuf", "application/vnd.google.protobuf")

    def __init__(
        self,
        message: Class | None = None,
        *,
        by_type: Mapping[str, Class | Sequence[Class]] | None = None,
        as_dict: bool = False,
    ) -> None:
        self._versions: Versions[Class] = Versions(
            message, by_type, lambda given: isinstance(given, list | tuple)
        )
        self._as_dict = as_dict
        for kind in self._versions.all():
            if not (isinstance(kind, type) and issubclass(kind, Message)):
                raise ConfigurationError("ProtobufSerializer takes classes of protobuf messages")

    def dumps(self, payload: Any) -> bytes:
        """Encode *payload* as the one class, or raise `SerializationError`."""
        return _write(self._versions.only, payload)

    def loads(self, data: bytes) -> Any:
        """Decode *data* as the one class, or raise `SerializationError`."""
        return self._read(self._versions.only, data)

    def encode(self, message: MessageEnvelope) -> Encoded:
        """Encode the payload as the newest class of the message's type."""
        kind, version = self._versions.newest(message)
        body = _write(kind, message.payload)
        name = message.schema_id or kind.DESCRIPTOR.full_name
        return Encoded(body, self.content_type, name, version)

    def decode(self, message: MessageEnvelope) -> Any:
        """Decode the body as the class of the message's type and version."""
        return self._read(self._versions.written(message), message.body)

    def _read(self, kind: Class, data: bytes) -> Any:
        payload = kind()
        try:
            payload.ParseFromString(data)
        except (DecodeError, ValueError, RuntimeError) as error:
            raise SerializationError(
                f"not a {kind.DESCRIPTOR.full_name} ({type(error).__name__})"
            ) from None
        if self._as_dict:
            return json_format.MessageToDict(
                payload, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        return payload


def _write(kind: Class, payload: Any) -> bytes:
    name = kind.DESCRIPTOR.full_name
    try:
        if not isinstance(payload, Message):
            payload = json_format.ParseDict(to_record(payload), kind())
        elif payload.DESCRIPTOR.full_name != name:
            raise SerializationError(f"the payload is a {payload.DESCRIPTOR.full_name}, not {name}")
        body: bytes = payload.SerializeToString(deterministic=True)
    except (EncodeError, json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SerializationError):
            raise
        # The texts of protobuf repeat values.
        raise SerializationError(
            f"the payload cannot be made a {name} ({type(error).__name__})"
        ) from None
    return body
