"""What the tests of AMQP share."""

from __future__ import annotations

from typing import Any

from pamqp import frame as pamqp_frame

from semel.transports.amqp_frames import Outgoing


def outgoing(number: int = 1, **fields: Any) -> Outgoing:
    values = {
        "exchange": "orders",
        "routing_key": "OrderPlaced",
        "message_id": f"m{number}",
        "content_type": "application/json",
        "timestamp": 1_700_000_000,
        "headers": {"cloudEvents_type": "Bestellung ä", "cloudEvents_id": f"m{number}"},
        "body": b"{}",
    }
    return Outgoing(**values | fields)


def unmarshal(data: bytes) -> list[Any]:
    """Return the frames as an independent library reads them."""
    frames = []
    while data:
        size, channel, frame = pamqp_frame.unmarshal(data)
        assert channel == 7
        frames.append(frame)
        data = data[size:]
    return frames
