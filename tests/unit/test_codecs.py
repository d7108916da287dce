"""Serializers by other libraries: what goes in comes out, and what would be mangled raises."""

import dataclasses
import importlib
import json
import sys
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, strategies as st

import semel.codecs
from semel.codecs import (
    AvroSerializer,
    MessagePackSerializer,
    MsgspecJsonSerializer,
    OrjsonSerializer,
    ProtobufSerializer,
)
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, SerializationError
from semel.serializers import Encoded, JsonSerializer, encode
from tests.unit.test_serializers import values

FAST_JSON = [MsgspecJsonSerializer(), OrjsonSerializer()]
ORDER_V1 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "long"}],
}
ORDER_V2 = {**ORDER_V1, "fields": [*ORDER_V1["fields"], {"name": "currency", "type": "string"}]}


def _order_class():
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kind = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="id", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    order.field.add(name="amount", number=2, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


Order = _order_class()


@dataclasses.dataclass
class Placed:
    id: str
    amount: int


def message(payload=None, **fields) -> MessageEnvelope:
    own = {} if "body" in fields else {"payload": payload}
    return MessageEnvelope(**{"topic": "orders", "event_type": "OrderPlaced"} | own | fields)


def received(encoded: Encoded, **fields) -> MessageEnvelope:
    return MessageEnvelope(
        topic="orders",
        event_type="OrderPlaced",
        body=encoded.body,
        content_type=encoded.content_type,
        **{"schema_version": encoded.schema_version} | fields,
    )


# JSON


@pytest.mark.parametrize("serializer", FAST_JSON)
@given(payload=values)
def test_json_round_trip(serializer, payload):
    """What was encoded decodes to the same, here and with the standard library."""
    body = serializer.dumps(payload)
    assert payload == serializer.loads(body)
    assert payload == json.loads(body)


@pytest.mark.parametrize("serializer", FAST_JSON)
@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (float("nan"), "NaN"),
        ({"a": [1, float("-inf")]}, "NaN"),
        ({"a": None, "b": float("nan")}, "NaN"),
        (Placed("1", float("inf")), "NaN"),
        (object(), "object is not JSON"),
        ("a\x00b", "NUL"),
        ({"a\x00": 1}, "NUL"),
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({("a", 1): 2}, "keys"),
    ],
)
def test_json_refuses(serializer, payload, text):
    """What JsonSerializer refuses is refused, though these libraries would write something."""
    with pytest.raises(SerializationError, match=text):
        serializer.dumps(payload)


@pytest.mark.parametrize("serializer", FAST_JSON)
@pytest.mark.parametrize(
    "payload", [{"null": 1}, ["null", None], "\\u0000", {1: 2}, 10**30, {"s": {3, 1, 2}}]
)
def test_json_allows(serializer, payload):
    """What only looks like trouble passes, and means what JsonSerializer means."""
    strict = JsonSerializer()
    assert strict.loads(strict.dumps(payload)) == serializer.loads(serializer.dumps(payload))


@pytest.mark.parametrize("serializer", FAST_JSON)
@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000])
def test_json_loads_refuses(serializer, data):
    """What is not strict JSON raises a SerializationError, whatever it is."""
    with pytest.raises(SerializationError, match="not valid JSON"):
        serializer.loads(data)


def test_orjson_writes_what_the_standard_library_writes():
    """Dates, numbers and dataclasses look the same, so serializers can be exchanged."""
    payload = {"at": datetime(2026, 1, 2, tzinfo=UTC), "n": Decimal("1.10"), "o": Placed("1", 2)}
    assert JsonSerializer().dumps(payload) == OrjsonSerializer().dumps(payload)


# MessagePack


@given(payload=values)
def test_messagepack_round_trip(payload):
    """What was encoded decodes to the same, except integers beyond 64 bits, which are refused."""
    serializer = MessagePackSerializer()
    try:
        body = serializer.dumps(payload)
    except SerializationError as error:
        assert "64 bits" in str(error)  # noqa: PT017  only some examples have such an integer
        return
    assert payload == serializer.loads(body)


def test_messagepack_keeps_types():
    """Bytes, times and keys that are no text survive."""
    payload = {"raw": b"\x00\xff", "at": datetime(2026, 1, 2, tzinfo=UTC), 7: "seven"}
    assert payload == MessagePackSerializer().loads(MessagePackSerializer().dumps(payload))


def test_messagepack_sets_have_one_order():
    """A set is sorted: a message that is made again must not look like another one."""
    words = [f"w{n}" for n in range(50)]
    dumps = MessagePackSerializer().dumps
    assert sorted(words) == MessagePackSerializer().loads(dumps(set(words)))


@pytest.mark.parametrize(
    ("payload", "text"),
    [(object(), "object is unknown"), ("\ud800", "surrogate"), (2**70, "64 bits")],
)
def test_messagepack_refuses(payload, text):
    """What it cannot hold raises, and says why."""
    with pytest.raises(SerializationError, match=text):
        MessagePackSerializer().dumps(payload)


@given(st.binary(max_size=40))
def test_messagepack_loads_anything(data):
    """Random bytes decode or raise a SerializationError, nothing else."""
    try:
        MessagePackSerializer().loads(data)
    except SerializationError as error:
        assert "not valid MessagePack" in str(error)  # noqa: PT017  most examples raise


# Avro


def test_avro_one_schema():
    """Dictionaries and dataclasses are written by the schema, without its name in them."""
    serializer = AvroSerializer(ORDER_V1)
    body = serializer.dumps({"id": "a", "amount": 1})
    assert b"\x02a\x02" == body
    assert body == serializer.dumps(Placed("a", 1))
    assert {"id": "a", "amount": 1} == serializer.loads(body)


def test_avro_versions():
    """The newest schema writes and says so; the message's version tells which one reads."""
    old, new = (
        AvroSerializer(by_type={"OrderPlaced": v}) for v in (ORDER_V1, [ORDER_V1, ORDER_V2])
    )
    first = encode(old, message({"id": "a", "amount": 1}))
    second = encode(new, message({"id": "a", "amount": 1, "currency": "EUR"}))
    assert (1, 2) == (first.schema_version, second.schema_version)
    assert "shop.Order" == second.schema_id
    assert {"id": "a", "amount": 1} == new.decode(received(first))
    assert {"id": "a", "amount": 1, "currency": "EUR"} == new.decode(received(second))
    with pytest.raises(SerializationError, match="newer"):
        old.decode(received(second))


@pytest.mark.parametrize(
    "payload",
    [{"id": "a"}, {"id": 1, "amount": 1}, {"id": "a", "amount": 1, "x": 4111}, None, 4111],
)
def test_avro_refuses(payload):
    """A payload that does not fit raises, and its values stay out of the text."""
    with pytest.raises(SerializationError, match=r"shop\.Order") as caught:
        AvroSerializer(ORDER_V1).dumps(payload)
    assert "4111" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02a\x02more", b"\xff\xff\xff"])
def test_avro_loads_refuses(data):
    """Too few bytes, too many and wrong ones are no Avro."""
    with pytest.raises(SerializationError, match="Avro"):
        AvroSerializer(ORDER_V1).loads(data)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        ((ORDER_V1,), {"by_type": {"a": ORDER_V1}}),
        (({"type": "nonsense"},), {}),
        ((), {"by_type": {"a": []}}),
    ],
)
def test_avro_bad_settings(arguments, options):
    """No schema, two ways at once, and what is no schema are refused at once."""
    with pytest.raises(ConfigurationError):
        AvroSerializer(*arguments, **options)


def test_unknown_event_type():
    """An event without a schema is refused with what to do about it."""
    for serializer in (
        AvroSerializer(by_type={"Other": ORDER_V1}),
        ProtobufSerializer(by_type={"Other": Order}),
    ):
        with pytest.raises(SerializationError, match="by_type"):
            serializer.encode(message({"id": "a", "amount": 1}))
        with pytest.raises(SerializationError, match="per type"):
            serializer.dumps({"id": "a", "amount": 1})


# Protobuf


def test_protobuf():
    """Messages, dictionaries and dataclasses give the same bytes, and a message comes back."""
    serializer = ProtobufSerializer(by_type={"OrderPlaced": Order})
    bodies = {
        encode(serializer, message(payload)).body
        for payload in (Order(id="a", amount=1), {"id": "a", "amount": 1}, Placed("a", 1))
    }
    assert {Order(id="a", amount=1).SerializeToString()} == bodies
    encoded = encode(serializer, message(Order(id="a", amount=1)))
    assert ("application/protobuf", "shop.Order", 1) == encoded[1:]
    assert Order(id="a", amount=1) == serializer.decode(received(encoded))


def test_protobuf_as_dict():
    """With as_dict a handler gets plain members, those with default values too."""
    serializer = ProtobufSerializer(Order, as_dict=True)
    assert {"id": "a", "amount": 0} == serializer.loads(serializer.dumps(Order(id="a")))


@pytest.mark.parametrize(
    "payload", [{"id": 1}, {"nonsense": 4111}, 4111, descriptor_pb2.FileDescriptorProto()]
)
def test_protobuf_refuses(payload):
    """A payload that is no such message raises, and its values stay out of the text."""
    with pytest.raises(SerializationError, match=r"shop\.Order") as caught:
        ProtobufSerializer(Order).dumps(payload)
    assert "4111" not in str(caught.value)


def test_protobuf_loads_refuses():
    """Damaged bytes are no message."""
    with pytest.raises(SerializationError, match=r"shop\.Order"):
        ProtobufSerializer(Order).loads(b"\x0a\xff")


def test_protobuf_bad_class():
    """Anything but a message class is refused at once."""
    with pytest.raises(ConfigurationError, match="classes"):
        ProtobufSerializer(dict)


# Installation


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("msgspec", "msgspec", "msgspec"),
        ("orjson", "orjson", "orjson"),
        ("avro", "fastavro", "avro"),
        ("protobuf", "google.protobuf", "protobuf"),
        ("registry", "confluent_kafka.schema_registry", "schema-registry"),
    ],
)
def test_missing_library(module, library, extra, monkeypatch):
    """Without the library the import says which line installs it."""
    monkeypatch.delitem(sys.modules, f"semel.codecs.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"pip install 'semel\[{extra}\]'"):
        importlib.import_module(f"semel.codecs.{module}")


def test_unknown_name():
    """The package has the names that it lists, and no others."""
    assert all(getattr(semel.codecs, name) for name in semel.codecs.__all__)
    with pytest.raises(AttributeError):
        _ = semel.codecs.XmlSerializer


def test_msgspec_struct():
    """A struct is written by its members."""

    class Line(msgspec.Struct):
        sku: str

    assert b'{"sku":"a"}' == MsgspecJsonSerializer().dumps(Line("a"))
    assert b'{"sku":"a"}' == OrjsonSerializer().dumps(Line("a"))
