"""What the tests of the Kafka bus share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest

from semel.envelope import MessageEnvelope
from semel.testing.contracts.harness import message
from semel.testing.reader import Reader
from semel.transports.kafka import KafkaMessageBus


@pytest.fixture(name="bus")
async def a_bus(service: Callable[[str], str]) -> AsyncIterator[KafkaMessageBus]:
    async with KafkaMessageBus(service("kafka")) as bus:
        yield bus


@pytest.fixture(name="topic")
async def a_topic(bus: KafkaMessageBus) -> str:
    """A topic with one partition, so that everything in it has one order."""
    return await new_topic(bus)


@pytest.fixture(name="servers")
def their_addresses(service: Callable[[str], str]) -> str:
    return service("kafka").removeprefix("kafka://")


async def new_topic(bus, partitions: int = 1, **config: str) -> str:
    name = f"test-{uuid4().hex}"
    settings = {name.replace("_", "."): value for name, value in config.items()}
    await bus.declare(name, partitions=partitions, config=settings)
    return name


def keyed(topic: str, count: int, keys: int = 1) -> list[MessageEnvelope]:
    return [message(topic, key=f"k{n % keys}", payload=n, event_id=f"{n}") for n in range(count)]


def named(topic: str, count: int, key: str = "k") -> list[MessageEnvelope]:
    return [message(topic, key=key, event_id=f"{key}-{n}") for n in range(count)]


async def read(bus, topic: str, prefetch: int = 100) -> Reader:
    subscription = await bus.subscribe(topic, group=topic, prefetch=prefetch)
    return Reader(subscription, patience_seconds=20)
