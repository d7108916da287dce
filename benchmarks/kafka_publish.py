"""publish_many beside a bare producer with callbacks: same Kafka, same messages, in turns.

    python -m benchmarks.kafka_publish [kafka://127.0.0.1:21092]

The first bare producer gets messages that are encoded already; the second one encodes them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

from semel.envelope import MessageEnvelope
from semel.transports.kafka import KafkaMessageBus

UNIQUE, REPEAT, BATCH, IN_FLIGHT, ROUNDS = 5_000, 10, 500, 10, 7


def bare(servers: str, messages: list[Any], encode: Callable[[Any], Any]) -> float:
    """Messages per second of a producer that does nothing else."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.produce(messages[0].topic, b"warm-up")
    producer.flush()
    left = len(messages)

    def done(error: Any, _: Any) -> None:
        nonlocal left
        assert error is None
        left -= 1

    began = time.perf_counter()
    for number, message in enumerate(messages):
        wire = encode(message)
        producer.produce(wire.topic, wire.body, wire.key, headers=wire.headers, on_delivery=done)
        if number % BATCH == 0:
            producer.poll(0)
    producer.flush()
    assert left == 0
    return len(messages) / (time.perf_counter() - began)


async def ours(bus: KafkaMessageBus, messages: list[MessageEnvelope]) -> float:
    """Messages per second of publish_many."""
    await bus.publish(messages[0])
    batches = iter([messages[at : at + BATCH] for at in range(0, len(messages), BATCH)])

    async def work() -> None:
        for batch in batches:
            assert not any(await bus.publish_many(batch))

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return len(messages) / (time.perf_counter() - began)


async def main(url: str) -> None:
    servers = url.removeprefix("kafka://")
    rates: dict[str, list[float]] = {"bare": [], "bare, encoding": [], "publish_many": []}
    async with KafkaMessageBus(url) as bus:
        topic = f"benchmark-{uuid4().hex}"
        await bus.declare(topic, partitions=4)
        some = [
            MessageEnvelope(
                topic=topic,
                body=b'{"x":"%b"}' % (b"x" * 500),
                event_type="OrderPlaced",
                aggregate_type="Order",
                aggregate_id=str(n % 100),
            )
            for n in range(UNIQUE)
        ]
        wires = [bus.encode(message) for message in some]
        gc.collect()
        gc.freeze()  # as in a process that runs a hub
        for _ in range(ROUNDS):
            rate = await asyncio.to_thread(bare, servers, wires * REPEAT, lambda wire: wire)
            rates["bare"].append(rate)
            rate = await asyncio.to_thread(bare, servers, some * REPEAT, bus.encode)
            rates["bare, encoding"].append(rate)
            rates["publish_many"].append(await ours(bus, some * REPEAT))
    best = statistics.median(rates["publish_many"])
    for name, values in rates.items():
        median = statistics.median(values)
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        print(f"{name:<15} {median:>9,.0f} msg/s  ({spread})  publish_many: {best / median:.2f}")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ["SEMEL_TEST_KAFKA_URL"]
    asyncio.run(main(address))
