"""What is written to RabbitMQ, byte for byte, and when acks go out; without a server."""

import asyncio

import pytest

from semel.transports.amqp_frames import Encoder
from semel.transports.rabbitmq_acks import Acks
from tests.transports.amqp_tools import outgoing, unmarshal


def test_frames():
    """Method, header and body say what the message says."""
    method, header, body = unmarshal(Encoder(7, 131072, mandatory=True).encode(outgoing()))
    assert ("orders", "OrderPlaced", True) == (
        method.exchange,
        method.routing_key,
        method.mandatory,
    )
    assert outgoing().properties() == header.properties
    assert header.properties.delivery_mode == 2
    assert {"cloudEvents_type": "Bestellung ä", "cloudEvents_id": "m1"} == header.properties.headers
    assert header.body_size == 2
    assert body.value == b"{}"


@pytest.mark.parametrize(("size", "frames"), [(0, 0), (1, 1), (992, 1), (993, 2), (5000, 6)])
def test_body_is_split(size, frames):
    """No frame is larger than agreed, and the pieces make up the body."""
    body = bytes(n % 251 for n in range(size))
    encoded = unmarshal(Encoder(7, 1000, mandatory=True).encode(outgoing(body=body)))
    assert frames == len(encoded) - 2
    assert body == b"".join(frame.value for frame in encoded[2:])
    assert all(len(frame.value) <= 992 for frame in encoded[2:])


def test_long_properties_become_headers():
    """An id or a type of more than 255 bytes travels as a header."""
    message = outgoing(message_id="ä" * 200, content_type="x/" + "y" * 300)
    properties = unmarshal(Encoder(7, 131072, mandatory=True).encode(message))[1].properties
    assert message.properties() == properties
    assert (None, None) == (properties.message_id, properties.content_type)
    assert properties.headers["message_id"] == "ä" * 200


def test_too_many_headers():
    """Properties that do not fit into a frame are refused, not sent damaged."""
    with pytest.raises(ValueError, match="properties"):
        Encoder(7, 4096, mandatory=True).encode(outgoing(headers={"h": "x" * 5000}))


def test_caches_are_bounded():
    """Ever new routes and headers do not fill the memory."""
    encoder = Encoder(7, 131072, mandatory=True)
    for n in range(10_050):
        encoder.encode(outgoing(routing_key=f"r{n}", headers={"h": str(n)}))
    assert len(encoder._methods) < 10_000
    assert len(encoder._headers) < 10_000


# Acks


class AckedChannel:
    def __init__(self):
        self.frames = []

    async def basic_ack(self, tag, *, multiple, wait):
        self.frames.append((tag, multiple))


async def test_acks_in_one_frame():
    """What is acked without a gap needs one frame; the rest is named one by one, each once."""
    channel = AckedChannel()
    acks = Acks(channel, prefetch=100)
    for tags, frames in [
        ((2, 1, 3), [(3, True)]),
        ((5, 7), [(5, False), (7, False)]),
        ((4,), [(4, True)]),  # 5 was named already
        ((6, 8), [(8, True)]),
        ((10,), [(10, False)]),
    ]:
        for tag in tags:
            acks.add(tag)
        await acks.flush()
        assert frames == channel.frames
        channel.frames.clear()


async def test_acks_do_not_wait_for_more_than_the_prefetch():
    """With a prefetch of 1 each ack goes out at once: nothing else would come."""
    channel = AckedChannel()
    Acks(channel, prefetch=1).add(1)
    await asyncio.sleep(0)
    assert [(1, True)] == channel.frames


async def test_acks_go_out_after_a_moment():
    """A few acks are sent although they do not fill a frame."""
    channel = AckedChannel()
    acks = Acks(channel, prefetch=100)
    acks.add(1)
    acks.add(2)
    await asyncio.sleep(0)
    assert [] == channel.frames
    async with asyncio.timeout(5):
        while not channel.frames:
            await asyncio.sleep(0.001)
    assert [(2, True)] == channel.frames
