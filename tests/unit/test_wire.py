"""Envelopes as CloudEvents, there and back."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings, strategies as st

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, WireError
from semel.wire import WireMessage, decode, encode
from semel.wire.message import RESERVED

PREFIXES = ["ce_", "ce-", "cloudEvents_", "cloudEvents:"]
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def envelope(**fields) -> MessageEnvelope:
    given = {"topic": "orders", "event_id": "1", "occurred_at": AT, "source": "shop", **fields}
    if "body" not in given:
        given.setdefault("payload", {"id": 1})
    return MessageEnvelope(**given)


def wire(headers, body=b"{}", key=None) -> WireMessage:
    return WireMessage("orders", key, headers, body)


# Encoding


def test_binary_headers():
    """The attributes of CloudEvents are headers, the body is the payload."""
    encoded = encode(
        envelope(
            event_type="OrderPlaced",
            aggregate_id="42",
            aggregate_type="Order",
            routing_key="eu",
            schema_id="https://example.com/order.json",
            schema_version=2,
            tenant_id="acme",
            metadata={
                "correlation_id": "c",
                "causation_id": "b",
                "traceparent": "00-1-2-01",
                "tracestate": "a=1",
                "region": "eu",
                "user_id": "u",
                "correlationid": "another",
            },
        )
    )
    assert ("orders", "Order:42") == (encoded.topic, encoded.key)
    assert encoded.body == b'{"id":1}'
    assert encoded.headers == {
        "ce_specversion": "1.0",
        "ce_id": "1",
        "ce_source": "shop",
        "ce_type": "OrderPlaced",
        "ce_time": "2026-01-02T03:04:05.000006Z",
        "ce_subject": "42",
        "ce_aggregatetype": "Order",
        "ce_partitionkey": "Order:42",
        "ce_routingkey": "eu",
        "ce_tenantid": "acme",
        "ce_dataschema": "https://example.com/order.json",
        "ce_schemaversion": "2",
        "ce_correlationid": "c",
        "ce_causationid": "b",
        "ce_region": "eu",
        "meta_user_id": "u",
        "meta_correlationid": "another",
        "traceparent": "00-1-2-01",
        "tracestate": "a=1",
        "message_id": "1",
        "content-type": "application/json",
    }


def test_source_of_the_bus():
    """A message without a source has that of its bus."""
    assert encode(envelope(source=None), source="bus").headers["ce_source"] == "bus"
    assert encode(envelope(), source="bus").headers["ce_source"] == "shop"


def test_raw():
    """Raw messages are the body, its type and the id."""
    encoded = encode(envelope(key="k", metadata={"a": "b"}), mode="raw")
    assert encoded.headers == {"message_id": "1", "content-type": "application/json"}
    assert (b'{"id":1}', "k") == (encoded.body, encoded.key)
    assert decode(encoded).event_id == "1"
    assert decode(encoded).event_type == "orders"


def test_structured():
    """A structured message is one JSON document, with the payload as it was written."""
    encoded = encode(
        envelope(body=b'{"price": 1.10}', metadata={"user_id": "u", "region": "eu"}),
        mode="structured",
    )
    assert encoded.headers == {
        "message_id": "1",
        "content-type": "application/cloudevents+json",
        "meta_user_id": "u",
    }
    assert encoded.body.endswith(b'"data":{"price": 1.10}}')
    assert json.loads(encoded.body) == {
        "specversion": "1.0",
        "id": "1",
        "source": "shop",
        "type": "orders",
        "time": "2026-01-02T03:04:05.000006Z",
        "tenantid": "default",
        "schemaversion": "1",
        "region": "eu",
        "datacontenttype": "application/json",
        "data": {"price": 1.1},
    }


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\x00\xff", "application/octet-stream"),
        (b'1,"id":"evil"', "application/json"),
        (b"", "application/json"),
        (b"\xff\xfe1\x00", "application/json"),
        (b"NaN", "application/json"),
        (b"hello", "text/plain"),
    ],
)
def test_structured_binary(body, content_type):
    """What is not JSON, or only says so, travels as base64 and cannot break the document."""
    encoded = encode(envelope(body=body, content_type=content_type), mode="structured")
    assert json.loads(encoded.body)["data_base64"] == base64.b64encode(body).decode()
    assert (body, content_type, "1") == (
        decode(encoded).body,
        decode(encoded).content_type,
        decode(encoded).event_id,
    )


def test_unknown_mode():
    """A mode that does not exist is a mistake of the configuration."""
    with pytest.raises(ConfigurationError, match="binary, structured, raw"):
        encode(envelope(), mode="xml")


def test_percent_encoding():
    """Where headers are ASCII the values are percent-encoded as the HTTP binding says."""
    headers = encode(envelope(event_type='Zoë "x" 100%'), prefix="ce-").headers
    assert headers["ce-type"] == "Zo%C3%AB%20%22x%22%20100%25"
    assert all(value.isascii() for value in headers.values())


def test_encoding_does_not_parse():
    """The relay's path touches neither the payload nor empty metadata."""
    stored = MessageEnvelope.restore(
        {
            "topic": "orders",
            "event_type": "OrderPlaced",
            "event_id": "1",
            "occurred_at": AT,
            "document": "not json",
            "metadata_json": "{}",
        }
    )
    assert encode(stored).body == b"not json"
    assert {"payload", "metadata"}.isdisjoint(vars(stored))


def test_headers_too_large_to_be_read():
    """What decode would refuse is not sent in the first place."""
    names = dict.fromkeys(("event_type", "key", "routing_key", "schema_id"), "\U0001f389" * 255)
    metadata = {f"a.{n}": "\U0001f389" * 30 for n in range(60)}
    with pytest.raises(WireError, match="at most 32768"):
        encode(envelope(**names, metadata=metadata), prefix="ce-")


def test_repr_hides_the_data():
    """A repr ends up in logs: names of headers only."""
    text = repr(wire({"ce_id": "alice"}, b"4111", key="bob"))
    assert "ce_id" in text
    assert "4 bytes" in text
    assert not any(word in text for word in ("alice", "4111", "bob"))


# Round trips


def text(limit: int, alphabet: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[str]:
    printable = st.characters(exclude_categories=["Cs", "Cc"])
    return st.text(alphabet or printable, min_size=1, max_size=limit)


metadata = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9_.-]{1,24}", fullmatch=True)
    | st.sampled_from([*sorted(RESERVED), "correlation_id", "causation_id"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    max_size=6,
)
envelopes = st.builds(
    MessageEnvelope,
    topic=text(20),
    payload=st.dictionaries(text(5), st.integers() | text(5), max_size=3),
    event_type=text(20),
    event_id=text(20),
    tenant_id=text(20),
    key=st.none() | text(20),
    aggregate_id=st.none() | text(20),
    aggregate_type=st.none() | text(20),
    routing_key=st.none() | text(20),
    schema_id=st.none() | text(20),
    schema_version=st.integers(1, 2**31 - 1),
    source=text(20),
    occurred_at=st.datetimes(
        min_value=datetime(2, 1, 1),  # noqa: DTZ001  hypothesis adds the timezone
        max_value=datetime(9998, 1, 1),  # noqa: DTZ001
        timezones=st.builds(timezone, st.timedeltas(timedelta(hours=-14), timedelta(hours=14))),
    ),
    metadata=metadata,
)


@settings(max_examples=200, deadline=None)
@given(envelopes, st.sampled_from(PREFIXES))
def test_binary_round_trip(message, prefix):
    """Every envelope survives, to the microsecond and to the byte, with every prefix."""
    assert message == decode(encode(message, prefix=prefix))


@settings(max_examples=200, deadline=None)
@given(envelopes)
def test_structured_round_trip(message):
    """Every envelope survives as a JSON document, too."""
    assert message == decode(encode(message, mode="structured"))


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["binary", "structured", "raw"]))
def test_bytes_round_trip(body, mode):
    """Any bytes survive in any mode."""
    assert body == decode(encode(envelope(body=body), mode=mode)).body
