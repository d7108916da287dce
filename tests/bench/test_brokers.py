"""What stands beside a bare producer in the benchmark does the same, and its work is bounded."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from pamqp import frame
from pamqp.body import ContentBody

from benchmarks import amqp
from semel import MessageEnvelope
from semel.transports.amqp_frames import Encoder
from semel.transports.rabbitmq import RabbitMQMessageBus
from semel.wire import encode

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def _stored(moment: datetime = AT) -> MessageEnvelope:
    """An event as the relay reads it."""
    return MessageEnvelope.restore(
        {
            "topic": "orders",
            "event_type": "OrderPlaced",
            "event_id": "1",
            "key": "k",
            "occurred_at": moment,
            "document": "{}",
            "metadata_json": "{}",
        }
    )


def test_the_bare_producer_writes_the_same_frames() -> None:
    """To the same exchange, too: to route a message is much of the broker's work."""
    bus = RabbitMQMessageBus("amqp://localhost/")
    message = _stored()
    outgoing = bus._outgoing(message, bus.encode(message))
    ours = Encoder(1, None, mandatory=True).encode(outgoing)
    bare = amqp.encode(bus.encode(message))
    assert len(bare) == len(ours)
    assert _parts(bare) == _parts(ours)


def _parts(data: bytes) -> list[Any]:
    """The frames, without the order of headers."""
    parts: list[Any] = []
    while data:
        size, _, value = frame.unmarshal(data)
        data = data[size:]
        fields = getattr(value, "properties", value)
        parts.append(value.value if isinstance(value, ContentBody) else dict(fields))
    return parts


def test_encoding_keeps_no_second_copy_of_the_body() -> None:
    """A row waits in memory as text until it is acknowledged; its bytes are gone before."""
    message = _stored()
    assert encode(message).body == b"{}"
    assert "body" not in vars(message)


def test_times_of_any_order_are_the_same_work() -> None:
    """The rows of a batch are of many keys, so their times jump back and forth."""
    near = [_stored(AT + timedelta(milliseconds=n)) for n in range(100)]
    far = [_stored(AT + timedelta(minutes=n * 37 % 100)) for n in range(100)]
    assert _calls(near) == _calls(far)


def _calls(messages: list[MessageEnvelope]) -> int:
    number = 0

    def count(_frame: Any, kind: str, _argument: Any) -> None:
        nonlocal number
        number += kind in ("call", "c_call")

    for message in messages:
        encode(message)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for message in messages:
            encode(message)
    finally:
        sys.setprofile(before)
    return number
