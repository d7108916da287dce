"""The one value of semel: what it accepts, what it refuses, what it keeps to itself."""

import copy
import pickle
import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from uuid import UUID

import pytest

from semel.envelope import MessageEnvelope, new_event_id
from semel.errors import InvalidMessageError, SerializationError


class NoOffset(tzinfo):
    """A timezone that does not know its offset makes a naive datetime."""

    def utcoffset(self, moment):
        return None


def message(**fields) -> MessageEnvelope:
    return MessageEnvelope(**{"topic": "orders", "payload": {"id": 1}, **fields})


def test_defaults():
    """A topic and a payload are enough."""
    before = datetime.now(UTC)
    envelope = MessageEnvelope(topic="orders", payload={"id": 1})
    assert envelope.event_type == "orders"
    assert envelope.tenant_id == "default"
    assert envelope.schema_version == 1
    assert envelope.version == "1"
    assert envelope.content_type == "application/json"
    assert envelope.metadata == {}
    assert before <= envelope.occurred_at <= datetime.now(UTC)
    assert (None, None, None) == (envelope.correlation_id, envelope.causation_id, envelope.user_id)


def test_event_ids_are_uuid7():
    """Ids are unique UUIDs of version 7 that begin with the time in milliseconds."""
    before = time.time_ns() // 1_000_000
    ids = [UUID(new_event_id()) for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 1000
    for uuid in ids:
        assert uuid.version == 7
        assert uuid.variant == "specified in RFC 4122"
        assert before <= uuid.int >> 80 <= after


def test_body_is_made_of_the_payload():
    """The body is the payload as compact JSON."""
    assert message(payload={"name": "Zoë"}).body == '{"name":"Zoë"}'.encode()


def test_payload_is_made_of_the_body():
    """The payload is decoded when it is asked for."""
    assert MessageEnvelope(topic="t", body=b'{"a": 1}').payload == {"a": 1}
    assert MessageEnvelope(topic="t", body=b"1", content_type="application/x+json").payload == 1


def test_payload_may_be_none():
    """None is a payload, not a missing one."""
    assert message(payload=None).body == b"null"


def test_needs_payload_or_body():
    """A message about nothing is a mistake."""
    with pytest.raises(InvalidMessageError, match="payload"):
        MessageEnvelope(topic="orders")


def test_body_of_an_unknown_type():
    """A body that is no JSON is left to those who know it."""
    envelope = MessageEnvelope(topic="t", body=b"\x00\x01", content_type="application/avro")
    assert envelope.body == b"\x00\x01"
    with pytest.raises(SerializationError, match="application/avro"):
        _ = envelope.payload


def test_body_that_is_not_json():
    """Broken JSON raises when the payload is asked for."""
    with pytest.raises(SerializationError):
        _ = MessageEnvelope(topic="t", body=b"{").payload


def test_restored_row_parses_late():
    """A row becomes an envelope without parsing; payload, body and metadata come when asked."""
    envelope = MessageEnvelope.restore(
        {
            "topic": "orders",
            "event_type": "OrderPlaced",
            "event_id": "1",
            "document": '{"a": 1}',
            "metadata_json": '{"correlation_id": "c"}',
        }
    )
    assert {"payload", "body", "metadata"}.isdisjoint(vars(envelope))
    assert envelope.body == b'{"a": 1}'
    assert envelope.payload == {"a": 1}
    assert envelope.correlation_id == "c"
    assert {"payload", "body", "metadata"} <= set(vars(envelope))


@pytest.mark.parametrize(
    ("fields", "order_key"),
    [
        ({}, None),
        ({"routing_key": "eu"}, "eu"),
        ({"routing_key": "eu", "aggregate_id": "1"}, "1"),
        ({"routing_key": "eu", "aggregate_id": "1", "aggregate_type": "Order"}, "Order:1"),
        ({"key": "k", "aggregate_id": "1", "aggregate_type": "Order"}, "k"),
        ({"aggregate_type": "Order"}, None),
    ],
)
def test_order_key(fields, order_key):
    """The key, else the aggregate, else the routing key."""
    assert order_key == message(**fields).order_key


def test_repr_hides_the_data():
    """A repr ends up in logs: neither payload nor metadata."""
    text = repr(message(payload={"card": "4111"}, metadata={"user_id": "alice"}, key="k"))
    assert "orders" in text
    assert "4111" not in text
    assert "alice" not in text


def test_is_immutable():
    """Neither the fields nor the metadata that were given can change it."""
    metadata = {"a": "1"}
    envelope = message(metadata=metadata)
    metadata["a"] = "2\r\n"
    assert envelope.metadata == {"a": "1"}
    with pytest.raises(AttributeError):
        envelope.topic = "other"  # type: ignore[misc]


def test_equality():
    """Messages are equal if everything that travels is; the form of the payload does not matter."""
    at = datetime.now(UTC)
    one = message(event_id="1", occurred_at=at)
    same = MessageEnvelope(topic="orders", body=b'{"id":1}', event_id="1", occurred_at=at)
    assert one == same
    assert hash(one) == hash(same)
    assert one != message(event_id="1", occurred_at=at, tenant_id="other")
    assert one != "1"


def test_copies():
    """An envelope survives copying and pickling, also before its payload was made."""
    envelope = MessageEnvelope(topic="t", body=b'{"a": 1}')
    for copied in (
        copy.copy(envelope),
        copy.deepcopy(envelope),
        pickle.loads(pickle.dumps(envelope)),
    ):
        assert envelope == copied
        assert copied.payload == {"a": 1}


NAMES = [
    "topic",
    "event_type",
    "event_id",
    "tenant_id",
    "key",
    "aggregate_id",
    "aggregate_type",
    "routing_key",
    "schema_id",
    "source",
    "content_type",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 256, "256 characters"),
        ("a\nb", "control character"),
        ("a\r\nX-Evil: 1", "control character"),
        ("a\x00", "control character"),
        ("a\x7f", "control character"),
        ("\t", "control character"),
        ("\ud800", "lone surrogate"),
        (5, "must be a str, not int"),
        (b"bytes", "must be a str, not bytes"),
        (UUID(int=1), "must be a str, not UUID"),
    ],
)
def test_bad_names(name, value, text):
    """What a database or a broker would mangle is refused where it is written, with the reason."""
    with pytest.raises(InvalidMessageError, match=text) as caught:
        message(**{name: value})
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "event_type"])
def test_empty_names(name):
    """An empty name is a mistake, not a missing one."""
    with pytest.raises(InvalidMessageError, match="must not be empty"):
        message(**{name: ""})


@pytest.mark.parametrize("name", ["topic", "event_id", "tenant_id"])
def test_none_is_no_name(name):
    """What must be there cannot be None."""
    with pytest.raises(InvalidMessageError, match="NoneType"):
        message(**{name: None})


def test_longest_names():
    """The limits are inclusive, and counted in characters."""
    assert message(topic="ä" * 255).topic == "ä" * 255
    assert message(tenant_id="t" * 64).tenant_id == "t" * 64
    with pytest.raises(InvalidMessageError, match="65 characters"):
        message(tenant_id="t" * 65)


def test_order_key_fits_too():
    """Type and id of an aggregate together must fit into the column of the key."""
    with pytest.raises(InvalidMessageError, match="aggregate_type:aggregate_id"):
        message(aggregate_type="T" * 128, aggregate_id="i" * 128)


@pytest.mark.parametrize("version", [0, -1, 2**31, True, "1", 1.0, None])
def test_bad_schema_version(version):
    """A schema version is a positive number that fits into its column."""
    with pytest.raises(InvalidMessageError, match="schema_version"):
        message(schema_version=version)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001  the mistake under test
        datetime(2026, 1, 1, tzinfo=NoOffset()),
        "2026-01-01T00:00:00Z",
        None,
    ],
)
def test_naive_time(moment):
    """A time without a timezone means something else on every machine."""
    with pytest.raises(InvalidMessageError, match="timezone"):
        message(occurred_at=moment)


def test_a_time_that_utc_does_not_have():
    """It would fail when it is published, and look like trouble with the broker."""
    with pytest.raises(InvalidMessageError, match="years 1 to 9999"):
        message(occurred_at=datetime.min.replace(tzinfo=timezone(timedelta(hours=14))))


@pytest.mark.parametrize("body", ["text", bytearray(b"x"), None, 5])
def test_bad_body(body):
    """A body is bytes."""
    with pytest.raises(InvalidMessageError, match="body must be bytes"):
        MessageEnvelope(topic="orders", body=body)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ("text", "mapping"),
        (None, "mapping"),
        ({"a": 1}, r"metadata\['a'\] must be a str, not int"),
        ({"a": None}, "must be a str"),
        ({1: "a"}, "metadata name"),
        ({"": "a"}, "metadata name"),
        ({"a b": "a"}, "metadata name"),
        ({"a\r\nb": "a"}, "metadata name"),
        ({"a\n": "a"}, "metadata name"),
        ({"ä": "a"}, "metadata name"),
        ({"a" * 129: "a"}, "metadata name"),
        ({"a": "x\r\nEvil: 1"}, "control character"),
        ({"a": "x\n"}, "control character"),
        ({"a": "\x00"}, "control character"),
        ({"a": "\x1b[31m"}, "control character"),
        ({"a": "\udcff"}, "lone surrogate"),
        ({str(n): "x" for n in range(65)}, "65 entries"),
        ({"a": "x" * 8192}, "8193 bytes"),
        ({"a": "ä" * 4096}, "8193 bytes"),
    ],
)
def test_bad_metadata(metadata, text):
    """Metadata travels as headers: names and values that could break out are refused."""
    with pytest.raises(InvalidMessageError, match=text) as caught:
        message(metadata=metadata)
    assert "Evil" not in str(caught.value)


def test_good_metadata():
    """Text in any language, tabs and empty values are fine, up to the limits."""
    metadata = {"A-z_0.9": "Zoë\t🎉", "empty": "", **{str(n): "x" for n in range(62)}}
    assert metadata == message(metadata=metadata).metadata
