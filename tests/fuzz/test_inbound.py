"""What each broker's client hands over, as anybody may have written it."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from semel.errors import WireError
from semel.transports.database_log import to_wire as database_wire
from semel.transports.kafka_subscription import _to_wire as kafka_wire
from semel.transports.nats_delivery import _wire as nats_wire
from semel.transports.pulsar_subscription import _key_of, _to_wire as pulsar_wire
from semel.transports.rabbitmq_subscription import read as rabbitmq_wire
from semel.transports.redis_delivery import to_wire as redis_wire
from semel.wire import WireMessage, decode
from tests.fuzz.hostile import BOMBS, documents, fuzz, tells_nothing, texts, values

KNOWN = ("ce_id", "ce-id", "message_id", "content-type", "ce_partitionkey", "ce_time", "Semel-Key")
raw_names = st.one_of(st.sampled_from([name.encode() for name in KNOWN]), st.binary(max_size=20))
raw_pairs = st.lists(st.tuples(raw_names, st.binary(max_size=40)), max_size=6)
text_pairs = st.dictionaries(st.one_of(st.sampled_from(KNOWN), texts), texts, max_size=6)


def kafka(draw: st.DrawFn) -> WireMessage:
    pairs = [
        (name.decode("utf-8", "replace"), draw(st.one_of(st.none(), st.just(value))))
        for name, value in draw(raw_pairs)
    ]
    key, body = draw(st.one_of(st.none(), st.binary(max_size=20))), draw(documents())
    message = SimpleNamespace(
        key=lambda: key, value=lambda: body or None, headers=lambda: pairs, topic=lambda: "orders"
    )
    return kafka_wire(message)


def redis(draw: st.DrawFn) -> WireMessage:
    fields = [part for pair in draw(raw_pairs) for part in pair]
    return redis_wire("orders", [*fields, b"data", draw(documents()), b"key", draw(st.binary())])


def nats(draw: st.DrawFn) -> WireMessage:
    return nats_wire("orders", draw(text_pairs), draw(documents()))


def rabbitmq(draw: st.DrawFn) -> WireMessage:
    odd = st.one_of(texts, st.binary(max_size=10), values)
    properties = SimpleNamespace(
        headers=draw(
            st.one_of(st.none(), st.dictionaries(st.one_of(st.sampled_from(KNOWN), texts), odd))
        ),
        message_id=draw(st.one_of(st.none(), texts)),
        content_type=draw(st.one_of(st.none(), texts)),
        correlation_id=draw(st.one_of(st.none(), texts)),
        message_type=draw(st.one_of(st.none(), texts)),
    )
    message = SimpleNamespace(
        header=SimpleNamespace(properties=properties), body=draw(documents()), redelivered=True
    )
    wire, attempt = rabbitmq_wire(message, "orders")  # type: ignore[arg-type]
    assert attempt >= 1 or properties.headers["x-delivery-count"] < 0
    return wire


def pulsar(draw: st.DrawFn) -> WireMessage:
    pairs, key, body = draw(text_pairs), draw(texts), draw(documents())
    readable = draw(st.booleans())

    def said(value: Any) -> Any:
        """The client decodes when it is asked, whatever the bytes are."""
        return value if readable else b"\xff".decode()

    message = SimpleNamespace(
        properties=lambda: said(pairs),
        ordering_key=lambda: said(key),
        partition_key=lambda: said(key),
        data=lambda: body,
        has_null_value=lambda: not body,
    )
    entry: Any = SimpleNamespace(copies=[message], key=_key_of(message))
    return pulsar_wire("orders", entry)


def database(draw: st.DrawFn) -> WireMessage:
    pairs = draw(text_pairs).items()
    whole = json.dumps(dict(pairs))
    text = draw(st.one_of(st.just(whole), documents().map(lambda d: d.decode("utf-8", "replace"))))
    row = SimpleNamespace(message_key=draw(st.none() | texts), headers=text, body=draw(documents()))
    return database_wire("orders", row)  # type: ignore[arg-type]


@pytest.mark.parametrize("broker", [kafka, redis, nats, rabbitmq, pulsar, database])
@given(data=st.data())
@fuzz(120)
def test_no_message_stops_a_subscription(
    broker: Callable[[st.DrawFn], WireMessage], data: Any
) -> None:
    """Reading never fails: what is no message is refused later, by its consumer, and parked."""
    wire = broker(data.draw)
    try:
        decode(wire)
    except WireError as error:
        tells_nothing(error)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:8].hex())
def test_no_header_of_the_database_bus_stops_a_subscription(bomb: bytes) -> None:
    """There headers are one JSON document, which a program other than semel may have written."""
    row = SimpleNamespace(message_key=None, headers=bomb.decode("utf-8", "replace"), body=b"{}")
    with pytest.raises(WireError):
        decode(database_wire("orders", row))  # type: ignore[arg-type]
