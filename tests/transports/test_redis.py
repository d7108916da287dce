"""Redis Streams: the contract of all buses on a real server, and what only it promises."""

from uuid import uuid4

import pytest
from redis.asyncio import Redis

from semel.envelope import MessageEnvelope
from semel.testing.contracts import MessageBusContract
from semel.transports.redis import RedisMessageBus

pytestmark = pytest.mark.redis


@pytest.fixture
async def prefix(service):
    """A prefix for keys that is free; the keys are gone afterwards."""
    name = f"test-{uuid4().hex[:12]}"
    yield name
    async with Redis.from_url(service("redis")) as client:
        keys = [key async for key in client.scan_iter(f"{name}:*", count=1000)]
        if keys:
            await client.delete(*keys)


@pytest.fixture
async def bus(service, prefix):
    async with RedisMessageBus(
        service("redis"), key_prefix=prefix, claim_after=2, max_bytes=2**20
    ) as bus:
        yield bus


class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True

    async def break_key(self, bus, topic, key):
        return MessageEnvelope(topic=topic, key=key, body=b"x" * (2**20 + 1))
