"""Everything that a broker may bring: messages of other producers, and what is no message."""

import json
from datetime import UTC, datetime
from urllib.parse import unquote

import pytest
from hypothesis import given, settings, strategies as st

from semel.errors import WireError
from semel.wire import WireMessage, decode, encode

PREFIXES = ["ce_", "ce-", "cloudEvents_", "cloudEvents:"]


def wire(headers, body=b"{}", key=None) -> WireMessage:
    return WireMessage("orders", key, headers, body)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_foreign_binary(prefix):
    """A CloudEvent of another producer is a message, whatever its binding."""
    message = decode(
        wire(
            {
                f"{prefix}specversion": "1.0",
                f"{prefix}id": "A-1",
                f"{prefix}source": "/else",
                f"{prefix}type": "com.example.placed",
                f"{prefix}time": "2026-01-02t03:04:05.123456789z",
                f"{prefix}subject": "42",
                f"{prefix}comexampleext": "x",
                "Content-Type": "application/json; charset=utf-8",
                "unrelated": "\x00\r\n",
            },
            b'{"a": 1}',
            key="p",
        )
    )
    assert ("A-1", "/else", "com.example.placed") == (
        message.event_id,
        message.source,
        message.event_type,
    )
    assert message.occurred_at == datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
    assert ("42", "p", "default") == (message.aggregate_id, message.order_key, message.tenant_id)
    assert message.metadata == {"comexampleext": "x"}
    assert message.payload == {"a": 1}


def test_header_names_in_any_case():
    """HTTP and NATS may change the case of names; the Kafka and AMQP prefixes are exact."""
    assert decode(wire({"Ce-Id": "1", "CE-TYPE": "t"})).event_type == "t"
    with pytest.raises(WireError, match="no id"):
        decode(wire({"CE_ID": "1"}))


def test_foreign_structured():
    """Numbers, booleans and nulls of a JSON CloudEvent become text; data keeps its bytes."""
    body = b""" {"specversion" : "1.0", "id":"1", "type":"t", "source":"/s", "data": {"a": 1.0} ,
        "count": 7, "flag": true, "none": null, "partitionkey": "k"} """
    message = decode(wire({"content-type": "application/cloudevents+json; charset=UTF-8"}, body))
    assert message.body == b'{"a": 1.0}'
    assert message.metadata == {"count": "7", "flag": "true"}
    assert message.order_key == "k"
    assert message.content_type == "application/json"


@pytest.mark.parametrize(
    ("document", "body"),
    [
        ({"datacontenttype": "text/plain", "data": "héllo"}, "héllo".encode()),
        ({"datacontenttype": "text/plain", "data": 5}, b"5"),
        ({"data": "text"}, b'"text"'),
        ({}, b"null"),
        ({"data_base64": "AAE="}, b"\x00\x01"),
        ({"data_base64": None}, b"null"),
    ],
)
def test_structured_data(document, body):
    """Data is what the content type says: text, JSON, or bytes."""
    headers = {"content-type": "application/cloudevents+json"}
    assert body == decode(wire(headers, json.dumps({"id": "1", **document}).encode())).body


@pytest.mark.parametrize("name", ["message_id", "Message_ID", "bh-message-id"])
def test_bare_message(name):
    """A plain body with an id header is a message of the topic's type."""
    message = decode(wire({name: "7", "traceparent": "00-1-2-01"}, b'{"a":1}', key="k"))
    assert ("7", "orders", "k") == (message.event_id, message.event_type, message.order_key)
    assert message.metadata == {"traceparent": "00-1-2-01"}
    assert message.payload == {"a": 1}


def test_bare_message_with_its_type():
    """A plain producer may name the type."""
    assert decode(wire({"message_id": "7", "event_type": "Placed"})).event_type == "Placed"


@pytest.mark.parametrize("key", [None, "", "k"])
def test_never_invents_an_id(key):
    """Without an id there is no message; the key of the broker is not one."""
    for headers in ({}, {"message_id": ""}, {"ce_type": "t", "ce_specversion": "1.0"}):
        with pytest.raises(WireError, match="no id"):
            decode(wire(headers, key=key))


def test_empty_key_is_no_key():
    """Some clients send an empty key for none."""
    assert decode(wire({"message_id": "1"}, key="")).order_key is None


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"ce_id": "1", "ce_specversion": "0.3"}, "major version"),
        ({"ce_id": "1", "ce-id": "2"}, "different values"),
        ({"ce_id": "x" * 256}, "event_id has 256 characters"),
        ({"ce_id": "1\r\nEvil: 1"}, "control character"),
        ({"ce_id": "1", "ce_tenantid": ""}, "tenant_id"),
        ({"ce_id": "1", "ce_tenantid": "t" * 65}, "tenant_id"),
        ({"ce_id": "1", "ce_time": "yesterday"}, "RFC 3339"),
        ({"ce_id": "1", "ce_time": "2026-01-02T03:04:05"}, "RFC 3339"),
        ({"ce_id": "1", "ce_time": "2026-01-02"}, "RFC 3339"),
        ({"ce_id": "1", "ce_time": "0001-01-01T00:00:00+14:00"}, "RFC 3339"),
        ({"ce_id": "1", "ce_schemaversion": "two"}, "schemaversion"),
        ({"ce_id": "1", "ce_schemaversion": "-1"}, "schemaversion"),
        ({"ce_id": "1", "ce_schemaversion": "9" * 5000}, "schemaversion"),
        ({"ce_id": "1", "ce_schemaversion": "²"}, "schemaversion"),
        ({"ce_id": "1", "ce_schemaversion": "0"}, "schema_version"),
        ({"ce_id": "1", "ce_ext": "Evil\n"}, "control character"),
        ({"ce_id": "1", "meta_a": "Evil%0D%0A"}, "control character"),
        ({"ce_id": "1", "meta_a": "%FF"}, "not UTF-8"),
        ({"ce_id": "1", "ce_bad name": "x"}, "metadata name"),
        ({"ce_id": "1", "meta_a": "x" * 9000}, "8192"),
        ({"ce_id": "1", **{f"meta_{n}": "x" for n in range(65)}}, "65 entries"),
        ({f"h{n}": "x" for n in range(129)}, "129 headers"),
        ({"ce_id": "1", "h": "x" * 40_000}, "at most 32768"),
        ({"ce_id": "1", "h": "ä" * 17_000}, "at most 32768"),
        ({"ce_id": b"1"}, "not text"),
        ({1: "1"}, "not text"),
        ({"ce_id": "\ud800"}, "lone surrogate"),
        (
            {"ce_id": "1", "content-type": "application/cloudevents-batch+json"},
            "cloudevents\\+json",
        ),
        ({"ce_id": "1", "content-type": "text/plain\r\nEvil: 1"}, "control character"),
    ],
)
def test_bad_headers(headers, text):
    """Headers are data that anybody may have written; the error says what, never the value."""
    with pytest.raises(WireError, match=text) as caught:
        decode(wire(headers))
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"x"',
        b"{",
        b'{"id"}',
        b'{"id":}',
        b'{"id":"1",}',
        b'{"id":"1"} x',
        b'{"id":"1" "a":1}',
        b'{1:"1"}',
        b'{"id":"1","id":"2"}',
        b'{"id":"1","data":NaN}',
        b'{"id":"1","x":{}}',
        b'{"id":"1","x":1.5}',
        b'{"id":"1","data_base64":"???"}',
        b'{"id":"1","data_base64":5}',
        b'{"id":"\xff"}',
        b'{"id":"1","datacontenttype":"text/plain","data":"\\ud800"}',
        b'{"id":"1","data":' + b"[" * 100_000,
    ],
)
def test_bad_documents(body):
    """What is not one JSON object with plain attributes is refused."""
    with pytest.raises(WireError):
        decode(wire({"content-type": "application/cloudevents+json", "message_id": "1"}, body))


def test_error_hides_the_payload():
    """A broken document is not quoted."""
    headers = {"content-type": "application/cloudevents+json"}
    with pytest.raises(WireError) as caught:
        decode(wire(headers, b'{"card": "4111"'))
    assert "4111" not in str(caught.value)
    assert caught.value.__suppress_context__


names = st.sampled_from(
    [prefix + name for prefix in PREFIXES for name in ("id", "type", "time", "schemaversion", "x")]
    + ["message_id", "bh-message-id", "content-type", "traceparent", "meta_a", "meta_"]
)
values = st.text(max_size=30) | st.sampled_from(["1", "1.0", "%C3", "application/cloudevents+json"])
documents = st.binary(max_size=60) | st.dictionaries(
    st.sampled_from(["id", "type", "time", "data", "data_base64", "x", "specversion"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.lists(st.integers()),
).map(lambda members: json.dumps(members).encode())


@settings(max_examples=500, deadline=None)
@given(
    st.dictionaries(names | st.text(max_size=10), values, max_size=8), documents, values | st.none()
)
def test_fuzz(headers, body, key):
    """Whatever arrives is a WireError, or a message that can be sent on as it is."""
    try:
        message = decode(wire(headers, body, key))
    except WireError:
        return
    again = decode(encode(message, source=message.source or "shop"))
    for name in ("event_id", "event_type", "order_key", "metadata", "occurred_at", "body"):
        assert getattr(message, name) == getattr(again, name)
    if "cloudevents" not in message.content_type and not body.startswith(b"{"):
        assert message.event_id in {*headers.values(), *map(unquote, headers.values())}
