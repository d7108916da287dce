"""Conformance with the CloudEvents SDK, in both directions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings import amqp, http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from semel.envelope import MessageEnvelope
from semel.wire import WireMessage, decode, encode

FORMAT = JSONFormat()
EVENT = MessageEnvelope(
    topic="orders",
    event_type="OrderPlaced",
    payload={"order_id": "1", "text": "é ✓"},
    event_id="id-1",
    tenant_id="t1",
    key="customer-7",
    aggregate_type="Order",
    aggregate_id="1",
    occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    metadata={"correlation_id": "c-1", "causation_id": "r-1"},
)


def as_bytes(headers: Mapping[str, str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in headers.items()}


def as_text(headers: Mapping[str, bytes | str]) -> dict[str, str]:
    return {n: v.decode() if isinstance(v, bytes) else str(v) for n, v in headers.items()}


def check(event: CloudEvent) -> None:
    assert "id-1" == event.get_id()
    assert "shop" == event.get_source()
    assert "OrderPlaced" == event.get_type()
    assert "1" == event.get_subject()
    assert EVENT.occurred_at == event.get_time()
    assert "customer-7" == event.get_extension("partitionkey")
    assert "t1" == event.get_extension("tenantid")
    assert "c-1" == event.get_extension("correlationid")
    data = event.get_data()
    assert EVENT.payload == (data if isinstance(data, dict) else json.loads(data))


def test_kafka_binary_is_read_by_the_sdk() -> None:
    """The SDK finds our attributes in the headers of a Kafka record."""
    wire = encode(EVENT, source="shop")
    message = kafka.KafkaMessage(headers=as_bytes(wire.headers), key=wire.key, value=wire.body)

    check(kafka.from_binary(message, FORMAT))


def test_structured_is_read_by_the_sdk() -> None:
    """The SDK reads our one JSON document."""
    wire = encode(EVENT, source="shop", mode="structured")
    message = kafka.KafkaMessage(headers=as_bytes(wire.headers), key=wire.key, value=wire.body)

    check(kafka.from_structured(message, FORMAT))


def test_amqp_binary_is_read_by_the_sdk() -> None:
    """The SDK finds our attributes in the application properties of an AMQP message."""
    wire = encode(EVENT, source="shop", prefix="cloudEvents_")
    own = {name: value for name, value in wire.headers.items() if name.startswith("cloudEvents_")}
    message = amqp.AMQPMessage(
        properties={"content-type": "application/json"},
        application_properties=own,
        application_data=wire.body,
    )

    check(amqp.from_binary(message, FORMAT))


def test_http_style_binary_is_read_by_the_sdk() -> None:
    """The SDK finds our attributes behind `ce-`, the prefix that NATS shares with HTTP."""
    wire = encode(EVENT, source="shop", prefix="ce-")

    check(http.from_binary(http.HTTPMessage(headers=dict(wire.headers), body=wire.body), FORMAT))


@pytest.fixture
def foreign() -> CloudEvent:
    """An event made by the SDK."""
    return CloudEvent(
        attributes={
            "id": "f-1",
            "source": "/elsewhere",
            "type": "com.example.placed",
            "specversion": "1.0",
            "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "subject": "order-9",
            "datacontenttype": "application/json",
            "partitionkey": "order-9",
        },
        data={"order_id": 9},
    )


def check_decoded(envelope: MessageEnvelope) -> None:
    assert "f-1" == envelope.event_id
    assert "com.example.placed" == envelope.event_type
    assert "/elsewhere" == envelope.source
    assert "order-9" == envelope.aggregate_id
    assert "order-9" == envelope.order_key
    assert datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) == envelope.occurred_at
    assert {"order_id": 9} == envelope.payload


def test_binary_of_the_sdk_is_decoded(foreign: CloudEvent) -> None:
    """What the SDK writes for Kafka in binary mode is a message to us."""
    made = kafka.to_binary(foreign, FORMAT)

    check_decoded(decode(WireMessage("orders", None, as_text(made.headers), made.value)))


def test_structured_of_the_sdk_is_decoded(foreign: CloudEvent) -> None:
    """What the SDK writes in structured mode is a message to us."""
    made = kafka.to_structured(foreign, FORMAT)

    check_decoded(decode(WireMessage("orders", None, as_text(made.headers), made.value)))


def test_amqp_of_the_sdk_is_decoded(foreign: CloudEvent) -> None:
    """What the SDK writes for AMQP is a message to us."""
    made = amqp.to_binary(foreign, FORMAT)
    headers = as_text(made.application_properties) | {
        "content-type": str(made.properties["content-type"])
    }
    # AMQP carries times in a type of its own; the client turns it into text.
    headers["cloudEvents_time"] = "2026-01-02T03:04:05Z"

    check_decoded(decode(WireMessage("orders", None, headers, made.application_data)))
