"""What the tests of the Kafka bus share."""

from __future__ import annotations

from uuid import uuid4

from semel.envelope import MessageEnvelope
from semel.testing.contracts.harness import message
from semel.testing.reader import Reader


async def new_topic(bus, partitions: int = 1, **config: str) -> str:
    name = f"fault-{uuid4().hex}"
    settings = {name.replace("_", "."): value for name, value in config.items()}
    await bus.declare(name, partitions=partitions, config=settings)
    return name


def keyed(topic: str, count: int, keys: int = 1) -> list[MessageEnvelope]:
    return [message(topic, key=f"k{n % keys}", payload=n, event_id=f"{n}") for n in range(count)]


async def read(bus, topic: str, prefetch: int = 100) -> Reader:
    subscription = await bus.subscribe(topic, group=topic, prefetch=prefetch)
    return Reader(subscription, patience_seconds=20)
