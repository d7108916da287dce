"""Avro by fastavro, without a registry: both sides have the schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from semel.codecs.records import Versions, to_record
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, SerializationError, missing_extra
from semel.serializers import Encoded

try:
    import fastavro
except ImportError as missing:
    raise ImportError(missing_extra("Avro", "avro")) from missing


class AvroSerializer:
    """Avro bodies without a header, by one *schema*, or by one for each type of event.

    *by_type* gives a type its schema, or a list of its versions, oldest first: the newest writes,
    and `schema_version` of a message tells which one reads. `schema_id` is the schema's name.

    >>> serializer = AvroSerializer(by_type={"OrderPlaced": [V1, V2]})      # doctest: +SKIP
    """

    content_type = "application/avro"
    aliases = ("avro/binary",)

    def __init__(
        self, schema: Any = None, *, by_type: Mapping[str, Any | Sequence[Any]] | None = None
    ) -> None:
        if by_type is not None:
            by_type = {
                name: [
                    parse(each) for each in (given if isinstance(given, list | tuple) else [given])
                ]
                for name, given in by_type.items()
            }
        self._versions: Versions[Any] = Versions(
            None if schema is None else parse(schema),
            by_type,
            lambda given: isinstance(given, list),
        )

    def dumps(self, payload: Any) -> bytes:
        """Encode *payload* by the one schema, or raise `SerializationError`."""
        return write(self._versions.only, payload)

    def loads(self, data: bytes) -> Any:
        """Decode *data* by the one schema, or raise `SerializationError`."""
        return read(self._versions.only, data)

    def encode(self, message: MessageEnvelope) -> Encoded:
        """Encode the payload by the newest schema of the message's type."""
        schema, version = self._versions.newest(message)
        body = write(schema, message.payload)
        return Encoded(body, self.content_type, message.schema_id or name_of(schema), version)

    def decode(self, message: MessageEnvelope) -> Any:
        """Decode the body by the schema of the message's type and version."""
        return read(self._versions.written(message), message.body)


def parse(schema: Any) -> Any:
    """Return *schema*, as fastavro wants it; `ConfigurationError` for one that is no schema."""
    try:
        # Names must not leak from one schema into another.
        return fastavro.parse_schema(schema, named_schemas={})
    except Exception as error:  # noqa: BLE001  a schema may be wrong in any way
        raise ConfigurationError(f"not an Avro schema: {error}") from None


def name_of(schema: Any) -> str | None:
    """Return the full name of a record, enumeration or fixed type; None for others."""
    return schema.get("name") if isinstance(schema, dict) else None


def write(schema: Any, payload: Any) -> bytes:
    """Encode *payload*; unknown and missing members are errors."""
    stream = BytesIO()
    try:
        fastavro.schemaless_writer(stream, schema, to_record(payload), strict_allow_default=True)
    except Exception as error:  # noqa: BLE001  a payload may be anything
        # The texts of fastavro repeat values.
        raise SerializationError(
            f"the payload does not fit the schema {name_of(schema)} ({type(error).__name__})"
        ) from None
    return stream.getvalue()


def read(schema: Any, data: bytes) -> Any:
    """Decode *data*, all of it."""
    stream = BytesIO(data)
    try:
        payload = fastavro.schemaless_reader(stream, schema, None)
    except Exception as error:  # noqa: BLE001  damaged bytes lead anywhere
        raise SerializationError(
            f"not Avro of the schema {name_of(schema)} ({type(error).__name__})"
        ) from None
    if stream.tell() != len(data):
        raise SerializationError(f"there are bytes behind the Avro of {name_of(schema)}")
    return payload
