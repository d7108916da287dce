"""Every format from the outbox over a bus to a handler, and old versions on the way."""

import asyncio
import dataclasses
import struct

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from sqlalchemy import select

from semel.codecs import (
    AvroSerializer,
    MessagePackSerializer,
    MsgspecJsonSerializer,
    OrjsonSerializer,
    ProtobufSerializer,
    SchemaRegistrySerializer,
)
from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, SerializationError
from semel.hub import Hub
from semel.serializers import Upcasters
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from tests.scenarios.registry import fake_registry
from tests.unit.test_codecs import ORDER_V1, ORDER_V2, Order

PAYLOAD = {"id": "a", "amount": 1}


@dataclasses.dataclass
class Placed:
    id: str
    amount: int


async def travel(database, bus, serializer, *, reader=None, upcasters=None, payload=PAYLOAD):
    """Send one event through outbox and bus; return its row, what arrived, and letters."""
    got: list[object] = []
    arrived = asyncio.Event()
    async with SqlAlchemyStorage(database.url, serializer=serializer) as storage:
        await storage.initialize()
        serializers = None if reader is None else [reader]
        hub = Hub("shop", storage=storage, bus=bus, serializers=serializers, upcasters=upcasters)

        @hub.on("orders", "OrderPlaced")
        async def place(order: Placed) -> None:
            got.append(order)
            arrived.set()

        letters = await bus.subscribe("orders.dead", group="letters")
        async with hub.running():
            async with hub.unit_of_work() as uow:
                await uow.outbox.add("orders", payload, event_type="OrderPlaced", key="a")
                await uow.commit()
            async with asyncio.timeout(20):
                waiting = asyncio.create_task(arrived.wait())
                dead = asyncio.ensure_future(anext(aiter(letters)))
                await asyncio.wait({waiting, dead}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                dead.cancel()
                await hub.drain()
        async with storage.session_factory() as session:
            query = select(OutboxRecord).where(OutboxRecord.topic == "orders")
            row = (await session.scalars(query)).one()
    return row, got


@pytest.mark.parametrize("serializer", [MsgspecJsonSerializer(), OrjsonSerializer()])
async def test_json(sqlite, bus, serializer):
    """Faster JSON is JSON: in the payload column, and for every consumer."""
    row, got = await travel(sqlite, bus, serializer)
    assert [Placed("a", 1)] == got
    assert (PAYLOAD, None) == (row.payload, row.payload_bytes)
    assert "application/json" == row.content_type


@pytest.mark.parametrize(
    ("serializer", "schema_id"),
    [
        (MessagePackSerializer(), None),
        (AvroSerializer(by_type={"OrderPlaced": ORDER_V1}), "shop.Order"),
        (ProtobufSerializer(by_type={"OrderPlaced": Order}, as_dict=True), "shop.Order"),
    ],
    ids=["messagepack", "avro", "protobuf"],
)
async def test_binary(sqlite, bus, serializer, schema_id):
    """Bytes are stored as bytes, travel as they are, and reach the handler decoded."""
    row, got = await travel(sqlite, bus, serializer)
    assert [Placed("a", 1)] == got
    assert row.payload is None
    assert (serializer.content_type, schema_id) == (row.content_type, row.schema_id)
    (wire,) = bus.published
    assert row.payload_bytes == wire.body
    assert serializer.content_type == wire.headers["content-type"]
    assert schema_id == wire.headers.get("ce_dataschema")


async def test_other_databases(database, bus):
    """Every database keeps the bytes."""
    row, got = await travel(database, bus, MessagePackSerializer())
    assert [Placed("a", 1)] == got
    assert MessagePackSerializer().dumps(PAYLOAD) == row.payload_bytes


async def test_version_of_the_row(sqlite, bus):
    """The version that wrote is in the row and in the headers."""
    serializer = AvroSerializer(by_type={"OrderPlaced": [ORDER_V1, ORDER_V2]})
    row, got = await travel(sqlite, bus, serializer, payload={**PAYLOAD, "currency": "EUR"})
    assert [Placed("a", 1)] == got
    assert 2 == row.schema_version
    assert "2" == bus.published[0].headers["ce_schemaversion"]


async def test_refused_in_the_transaction(sqlite, bus):
    """A payload that does not fit raises where it is added, and nothing is written."""
    with pytest.raises(SerializationError, match=r"shop\.Order"):
        await travel(sqlite, bus, AvroSerializer(ORDER_V1), payload={"id": "a"})
    assert [] == bus.published


async def test_upcasters(sqlite, bus):
    """A message of an old version reaches the handler as the newest."""
    old = MessageEnvelope(topic="orders", event_type="OrderPlaced", payload={"id": "a"})
    upcasters = Upcasters().register("OrderPlaced", 1, lambda payload: {**payload, "amount": 7})
    got: list[MessageEnvelope] = []
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        hub = Hub("shop", storage=storage, bus=bus, upcasters=upcasters)

        @hub.on("orders", "OrderPlaced")
        async def place(message: MessageEnvelope) -> None:
            got.append(message)

        async with hub.running():
            await bus.publish(old)
            await hub.drain()
            await bus.publish(old)  # a duplicate: what was sent is compared, not what it became
            await hub.drain()
    assert [({"id": "a", "amount": 7}, 2)] == [(m.payload, m.schema_version) for m in got]
    assert b'{"id":"a"}' == got[0].body


async def test_failed_message_keeps_its_version(sqlite, bus):
    """A dead letter holds what was sent, not what it was made into, and so can be sent again."""
    upcasters = Upcasters().register("OrderPlaced", 1, lambda payload: {**payload, "amount": "x"})
    _, got = await travel(sqlite, bus, None, upcasters=upcasters)
    (letter,) = [wire for wire in bus.published if wire.topic == "orders.dead"]
    assert [] == got
    assert b'{"id":"a","amount":1}' == letter.body
    assert "1" == letter.headers["ce_schemaversion"]


async def test_damaged_body_is_parked(sqlite, bus):
    """A body that its serializer cannot read is parked at once; the next one is handled."""
    serializer = MessagePackSerializer()
    bad = MessageEnvelope(
        topic="orders", event_type="OrderPlaced", body=b"\xc1", content_type="application/msgpack"
    )
    await bus.publish(bad)
    _, got = await travel(sqlite, bus, serializer)
    assert [Placed("a", 1)] == got
    (letter,) = [wire for wire in bus.published if wire.topic == "orders.dead"]
    assert bad.event_id == letter.headers["meta_dead_letter_id"]
    assert "undecodable" == letter.headers["meta_dead_letter_reason"]


# With a registry that fails on demand; test_schema_registry.py has a real one


@pytest.fixture
def registry():
    with fake_registry() as fake:
        yield fake


async def test_registry(sqlite, bus, registry):
    """Ids of the registry lead the body, and are in the row and the headers."""
    by_type = {"OrderPlaced": ORDER_V1}
    writer = SchemaRegistrySerializer(registry.url, by_type=by_type, register=True)
    await writer.start()
    row, got = await travel(sqlite, bus, writer, reader=SchemaRegistrySerializer(registry.url))
    assert [Placed("a", 1)] == got
    assert struct.pack(">bI", 0, 1) + b"\x02a\x02" == row.payload_bytes
    assert ("1", 1, "application/vnd.confluent.avro") == (
        row.schema_id,
        row.schema_version,
        row.content_type,
    )
    assert "1" == bus.published[0].headers["ce_dataschema"]
    assert {"shop.Order": [1]} == registry.subjects


async def test_registry_away(sqlite, bus, registry, caplog):
    """While the registry is away messages wait, and none is parked."""
    writer = SchemaRegistrySerializer(
        registry.url, by_type={"OrderPlaced": ORDER_V1}, register=True
    )
    await writer.start()
    client = SchemaRegistryClient({"url": registry.url, "max.retries": 0})
    registry.broken = True
    told = len(registry.requests)

    async def repair() -> None:
        async with asyncio.timeout(20):
            while len(registry.requests) < told + 2:
                await asyncio.sleep(0.01)
        registry.broken = False

    repairing = asyncio.create_task(repair())
    _, got = await travel(sqlite, bus, writer, reader=SchemaRegistrySerializer(client))
    await repairing
    assert [Placed("a", 1)] == got
    assert "a schema cannot be had yet" in caplog.text
    assert {"orders"} == {wire.topic for wire in bus.published}


async def test_registry_without_the_schema(registry):
    """A schema that nobody registered is a mistake of the deployment."""
    serializer = SchemaRegistrySerializer(registry.url, by_type={"OrderPlaced": ORDER_V1})
    with pytest.raises(ConfigurationError, match=r"shop\.Order"):
        await serializer.start()
    message = MessageEnvelope(topic="orders", event_type="OrderPlaced", payload=PAYLOAD)
    with pytest.raises(ConfigurationError, match="start"):
        serializer.encode(message)


async def test_registry_broken_at_the_start(registry):
    """A registry that does not answer is no mistake of the deployment."""
    registry.broken = True
    client = SchemaRegistryClient({"url": registry.url, "max.retries": 0})
    serializer = SchemaRegistrySerializer(client, by_type={"OrderPlaced": ORDER_V1})
    with pytest.raises(BusError, match="503"):
        await serializer.start()


@pytest.mark.parametrize(
    "body", [b"", b"\x00\x00", b"\x01\x00\x00\x00\x01x", b"\x00\x00\x00\x00\x09x"]
)
async def test_registry_cannot_decode(registry, body):
    """A body in another format, or with an id that the registry lacks, is undecodable."""
    serializer = SchemaRegistrySerializer(registry.url)
    message = MessageEnvelope(
        topic="orders", body=body, content_type="application/vnd.confluent.avro"
    )
    await serializer.prepare(message)
    with pytest.raises(SerializationError):
        serializer.decode(message)


async def test_registry_is_asked_once(registry):
    """A schema is fetched for the first message that needs it."""
    registry.register("s", '{"type":"string"}')
    serializer = SchemaRegistrySerializer(registry.url)
    message = MessageEnvelope(
        topic="orders",
        body=b"\x00\x00\x00\x00\x01\x02x",
        content_type="application/vnd.confluent.avro",
    )
    for _ in range(3):
        await serializer.prepare(message)
        assert "x" == serializer.decode(message)
    assert ["GET /schemas/ids/1"] == registry.requests
