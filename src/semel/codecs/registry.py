"""Avro with a schema registry, in the wire format of Confluent."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from semel.codecs.avro import name_of, parse, read, write
from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, SerializationError, missing_extra
from semel.serializers import Encoded

try:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError
except ImportError as missing:
    raise ImportError(missing_extra("a schema registry", "schema-registry")) from missing

_HEAD = struct.Struct(">bI")
_GONE = frozenset((404, 40401, 40402, 40403))

Subject = Callable[[str, Any], str]


def by_record(event_type: str, schema: Any) -> str:
    """Name a subject after its record, so that a topic may have several types of events."""
    return name_of(schema) or event_type


class SchemaRegistrySerializer:
    """Avro bodies behind a zero byte and the id that the registry gave to their schema.

    *registry* is the registry's URL or a `SchemaRegistryClient`; *by_type* gives a type of event
    the schema that it is written with. Encoding needs `await start()` before, which looks the
    schemas up, or registers them with *register*: neither encoding nor decoding waits for a
    network. A consumer fetches the schemas of what it receives, and waits while it cannot.
    *subject* names the subject of a schema, see `by_record`.
    """

    content_type = "application/vnd.confluent.avro"

    def __init__(
        self,
        registry: str | SchemaRegistryClient,
        *,
        by_type: Mapping[str, Any] | None = None,
        register: bool = False,
        subject: Subject = by_record,
    ) -> None:
        self._own = ExitStack()
        self._client: Any = registry
        if isinstance(registry, str):
            self._client = self._own.enter_context(SchemaRegistryClient({"url": registry}))
        self._given = dict(by_type or {})
        self._register = register
        self._subject = subject
        self._writers: dict[str, tuple[int, int, Any]] = {}  # event type: id, version, schema
        self._readers: dict[int, Any] = {}

    async def start(self) -> None:
        """Look up or register the schemas of *by_type*; `BusError` if the registry is away."""
        for event_type, given in self._given.items():
            schema = parse(given)
            subject = self._subject(event_type, schema)
            text = Schema(json.dumps(given), "AVRO")
            try:
                if self._register:
                    await asyncio.to_thread(self._client.register_schema, subject, text)
                found = await asyncio.to_thread(self._client.lookup_schema, subject, text)
            except SchemaRegistryError as error:
                if _is_gone(error):
                    raise ConfigurationError(
                        f"the registry does not know this schema as {subject!r}: register it, or "
                        "say register=True"
                    ) from None
                raise BusError(_explain(error)) from None
            except Exception as error:  # noqa: BLE001  the client of a network raises anything
                raise BusError(f"the registry cannot be asked: {type(error).__name__}") from None
            self._writers[event_type] = (found.schema_id, found.version, schema)
            self._readers[found.schema_id] = schema

    async def close(self) -> None:
        """Close the connections to a registry that was given as a URL. Idempotent."""
        await asyncio.to_thread(self._own.close)

    async def prepare(self, message: MessageEnvelope) -> None:
        """Fetch the schema of *message*, once; `BusError` if the registry is away."""
        number = _id_of(message.body)
        if number is None or number in self._readers:
            return
        try:
            schema = await asyncio.to_thread(self._client.get_schema, number)
        except SchemaRegistryError as error:
            if not _is_gone(error):
                raise BusError(_explain(error)) from None
            return  # `loads` says so
        except Exception as error:  # noqa: BLE001  the client of a network raises anything
            raise BusError(f"the registry cannot be asked: {type(error).__name__}") from None
        with suppress(ConfigurationError, ValueError, TypeError):  # it may be no Avro
            self._readers[number] = parse(json.loads(schema.schema_str))

    def dumps(self, payload: Any) -> bytes:
        """Raise: the schema depends on the type of the event, which `encode` knows."""
        raise SerializationError("there is a schema per type of event: use encode(message)")

    def loads(self, data: bytes) -> Any:
        """Decode *data* by the schema that it names, or raise `SerializationError`."""
        number = _id_of(data)
        if number is None:
            raise SerializationError("the body does not begin as Confluent's wire format does")
        if number not in self._readers:
            raise SerializationError(
                f"no Avro schema {number}: the registry has none, or it was not asked; "
                "await prepare(message)"
            )
        return read(self._readers[number], data[_HEAD.size :])

    def encode(self, message: MessageEnvelope) -> Encoded:
        """Encode the payload by the schema of the message's type."""
        if message.event_type not in self._given:
            raise SerializationError(
                f"there is no schema for event type {message.event_type!r}: add it to by_type"
            )
        if message.event_type not in self._writers:
            raise ConfigurationError("await start() of the SchemaRegistrySerializer before")
        number, version, schema = self._writers[message.event_type]
        body = _HEAD.pack(0, number) + write(schema, message.payload)
        return Encoded(body, self.content_type, str(number), version)

    def decode(self, message: MessageEnvelope) -> Any:
        """Decode the body by the schema that it names."""
        return self.loads(message.body)


def _id_of(body: bytes) -> int | None:
    if len(body) < _HEAD.size or body[0] != 0:
        return None
    number: int = _HEAD.unpack_from(body)[1]
    return number


def _is_gone(error: Any) -> bool:
    return bool(_GONE & {error.http_status_code, error.error_code})


def _explain(error: Any) -> str:
    return f"the registry answers {error.http_status_code}, error {error.error_code}"
