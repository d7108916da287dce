"""Avro with a real schema registry, read and written by Confluent's own serializers too."""

import json
import struct
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from semel.codecs import SchemaRegistrySerializer
from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, SerializationError
from tests.scenarios.test_serializers import PAYLOAD, Placed, travel
from tests.unit.test_codecs import ORDER_V1, ORDER_V2

pytestmark = pytest.mark.registry
TYPE = "application/vnd.confluent.avro"


@pytest.fixture
def url(service) -> str:
    return service("registry")


@pytest.fixture
def client(url):
    with SchemaRegistryClient({"url": url}) as client:
        yield client


@pytest.fixture
def subject() -> str:
    """A subject that no other test uses."""
    return f"orders-{uuid4().hex}-value"


async def started(client, subject, schema, *, register=True) -> SchemaRegistrySerializer:
    serializer = SchemaRegistrySerializer(
        client, by_type={"OrderPlaced": schema}, register=register, subject=lambda *_: subject
    )
    await serializer.start()
    return serializer


def placed(**fields) -> MessageEnvelope:
    return MessageEnvelope(topic="orders", event_type="OrderPlaced", **fields)


async def test_round_trip(sqlite, bus, url, client, subject):
    """From the outbox to a handler that knows nothing but the registry's address."""
    writer, reader = await started(client, subject, ORDER_V1), SchemaRegistrySerializer(url)
    row, got = await travel(sqlite, bus, writer, reader=reader)
    await reader.close()
    assert [Placed("a", 1)] == got
    found = client.get_latest_version(subject)
    assert (str(found.schema_id), found.version) == (row.schema_id, row.schema_version)
    assert struct.pack(">bI", 0, found.schema_id) + b"\x02a\x02" == row.payload_bytes


async def test_confluent_reads_ours(client, subject):
    """Their deserializer understands the body as it stands."""
    body = (await started(client, subject, ORDER_V1)).encode(placed(payload=PAYLOAD)).body
    context = SerializationContext("orders", MessageField.VALUE)
    assert PAYLOAD == AvroDeserializer(client)(body, context)


async def test_we_read_confluents(client, subject):
    """What their serializer writes and registers is decoded here."""
    topic = subject.removesuffix("-value")
    write = AvroSerializer(client, json.dumps(ORDER_V1))
    body = write(PAYLOAD, SerializationContext(topic, MessageField.VALUE))
    reader = SchemaRegistrySerializer(client)
    message = placed(body=body, content_type=TYPE)
    await reader.prepare(message)
    assert PAYLOAD == reader.decode(message)


async def test_versions(client, subject):
    """A new version has a number and an id of its own; what the old one wrote is still read."""
    first = (await started(client, subject, ORDER_V1)).encode(placed(payload=PAYLOAD))
    writer = await started(client, subject, ORDER_V2)
    second = writer.encode(placed(payload={**PAYLOAD, "currency": "EUR"}))
    assert (1, 2) == (first.schema_version, second.schema_version)
    assert first.schema_id != second.schema_id
    old = placed(body=first.body, content_type=TYPE)
    await writer.prepare(old)
    assert PAYLOAD == writer.decode(old)


async def test_unknown_schema(client, subject):
    """A schema that nobody registered is a mistake of the deployment."""
    with pytest.raises(ConfigurationError, match="register it"):
        await started(client, subject, ORDER_V1, register=False)


async def test_incompatible_schema(client, subject):
    """A registry that refuses a version says so, and nothing is registered."""
    await started(client, subject, ORDER_V1)
    client.set_compatibility(subject, "BACKWARD")
    other = {**ORDER_V1, "fields": [{"name": "id", "type": "int"}]}
    with pytest.raises((BusError, ConfigurationError), match="409"):
        await started(client, subject, other)
    assert [1] == client.get_versions(subject)


async def test_unknown_id(client):
    """An id that the registry lacks makes a message undecodable, not the registry away."""
    reader = SchemaRegistrySerializer(client)
    message = placed(body=struct.pack(">bI", 0, 2_000_000_000) + b"x", content_type=TYPE)
    await reader.prepare(message)
    with pytest.raises(SerializationError, match="2000000000"):
        reader.decode(message)
