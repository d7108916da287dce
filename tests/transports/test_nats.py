"""NATS JetStream: the contract of all buses on a real server, and what only it promises."""

from uuid import uuid4

import nats
import pytest

from semel.envelope import MessageEnvelope
from semel.testing.contracts import MessageBusContract
from semel.transports.nats import NatsMessageBus

pytestmark = pytest.mark.nats


@pytest.fixture
async def stream(service):
    """A stream's name that is free; the stream is gone afterwards."""
    name = f"test-{uuid4().hex[:12]}"
    yield name
    client = await nats.connect(service("nats"))
    try:
        await client.jetstream().delete_stream(name)
    except nats.js.errors.NotFoundError:
        pass
    finally:
        await client.close()


@pytest.fixture
async def bus(service, stream):
    async with NatsMessageBus(service("nats"), stream=stream) as bus:
        yield bus


class TestContract(MessageBusContract):
    prefix = "ce-"
    survives_restart = True
    deduplicates = True
    breaks_keys = True

    async def break_key(self, bus, topic, key):
        return MessageEnvelope(topic=topic, key=key, body=b"x" * (1024 * 1024 + 1))
