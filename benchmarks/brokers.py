"""Real brokers: semel's bus, and a bare producer that does nothing but send the same bytes.

A bare producer gets messages that are encoded already, keeps many in flight and waits for the
broker's confirmation of each, which semel does, too. It sends them the same way, for a broker may
take long to find out where a message goes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from benchmarks.amqp import blast
from benchmarks.databases import PAYLOAD
from benchmarks.relaying import BATCH
from benchmarks.runner import Bench
from semel import MessageEnvelope, OutboxProjectorConfig
from semel.protocols import MessageBus
from semel.wire.message import WireMessage

#: Gets everything ready, and returns what to wait for while the clock runs.
Prepare = Callable[[Sequence[WireMessage]], Callable[[], Awaitable[None]]]


@dataclass(frozen=True, slots=True)
class Broker:
    """A bus, a fresh topic on it, and a bare producer to the same broker."""

    bus: MessageBus
    topic: str
    prepare: Prepare

    async def bare(self, count: int) -> float:
        """Messages per second of the bare producer."""
        wires = [self.bus.encode(_message(self.topic, n)) for n in range(count)]  # type: ignore[attr-defined]
        send = self.prepare(wires)
        gc.collect()  # what was made before the clock runs
        began = time.perf_counter()
        await send()
        return count / (time.perf_counter() - began)

    async def publish_many(self, count: int) -> float:
        """Messages per second of the bus, in batches like those of a relay."""
        messages = [_message(self.topic, n) for n in range(count)]
        batches = iter([messages[n : n + BATCH] for n in range(0, count, BATCH)])

        async def lane() -> None:
            for batch in batches:
                assert not any(await self.bus.publish_many(batch))

        gc.collect()
        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(OutboxProjectorConfig().concurrency)))
        return count / (time.perf_counter() - began)


def _message(topic: str, number: int = 0) -> MessageEnvelope:
    return MessageEnvelope(
        topic=topic, body=PAYLOAD.encode(), event_type="OrderPlaced", key=f"k{number % 997}"
    )


@asynccontextmanager
async def kafka(bench: Bench) -> AsyncIterator[Broker]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    from semel.transports.kafka import KafkaMessageBus

    url = bench.server("kafka")
    servers = {"bootstrap.servers": url.removeprefix("kafka://")}
    producer = Producer(
        {
            **servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    topic = f"bench-{uuid4().hex}"

    def produce(wires: Sequence[WireMessage]) -> None:
        left = len(wires)

        def done(error: Any, _: Any) -> None:
            nonlocal left
            assert error is None
            left -= 1

        for number, wire in enumerate(wires):
            producer.produce(topic, wire.body, wire.key, headers=wire.headers, on_delivery=done)
            if number % 500 == 0:
                producer.poll(0)
        producer.flush()
        assert left == 0

    async with KafkaMessageBus(url) as bus:
        await bus.declare(topic, partitions=4)
        try:
            yield Broker(bus, topic, lambda wires: partial(asyncio.to_thread, produce, wires))
        finally:
            admin = AdminClient(servers)
            await asyncio.to_thread(admin.delete_topics([topic])[topic].result)


@asynccontextmanager
async def rabbitmq(bench: Bench, queue_type: Any) -> AsyncIterator[Broker]:
    from semel.transports.rabbitmq import RabbitMQMessageBus

    url = bench.server("rabbitmq")
    topic = f"bench-{uuid4().hex[:12]}"
    queue = f"{topic}.bench"
    async with RabbitMQMessageBus(url, queue_type=queue_type) as bus:
        subscription = await bus.subscribe(topic, group="bench")
        await subscription.close()
        try:
            yield Broker(bus, topic, partial(blast, url))
        finally:
            await _delete(url, queue, topic)


async def _delete(url: str, queue: str, exchange: str) -> None:
    import aio_pika

    connection = await aio_pika.connect(url)
    async with connection, connection.channel() as channel:
        await channel.queue_delete(queue)
        await channel.queue_delete(f"{queue}.dead")
        await channel.exchange_delete(exchange)


@asynccontextmanager
async def nats(bench: Bench) -> AsyncIterator[Broker]:
    import nats as client_library

    from semel.transports.nats import NatsMessageBus

    stream = f"bench-{uuid4().hex[:12]}"
    client = await client_library.connect(bench.server("nats"))
    jetstream = client.jetstream(publish_async_max_pending=2000)

    async def send(wires: Sequence[WireMessage]) -> None:
        answers = [
            await jetstream.publish_async(
                f"{stream}.bare.p{number % 16}",
                wire.body,
                headers={**wire.headers, "Nats-Msg-Id": wire.headers["message_id"]},
            )
            for number, wire in enumerate(wires)
        ]
        await asyncio.gather(*answers)

    try:
        async with NatsMessageBus(client, stream=stream) as bus:
            await bus.publish(_message("orders"))
            yield Broker(bus, "orders", lambda wires: partial(send, wires))
    finally:
        await jetstream.delete_stream(stream)
        await client.close()


@asynccontextmanager
async def redis(bench: Bench) -> AsyncIterator[Broker]:
    from redis.asyncio import Redis

    from semel.transports.redis import RedisMessageBus

    prefix = f"bench-{uuid4().hex[:12]}"
    async with Redis.from_url(bench.server("redis")) as client:

        async def send(wires: Sequence[WireMessage]) -> None:
            for start in range(0, len(wires), 500):
                pipeline = client.pipeline(transaction=False)
                for number, wire in enumerate(wires[start : start + 500]):
                    fields = {**wire.headers, "data": wire.body}
                    pipeline.xadd(f"{prefix}:bare:{number % 16}", fields)
                await pipeline.execute()

        try:
            async with RedisMessageBus(client, key_prefix=prefix) as bus:
                yield Broker(bus, "orders", lambda wires: partial(send, wires))
        finally:
            async for key in client.scan_iter(f"{prefix}*", count=1000):
                await client.delete(key)


@asynccontextmanager
async def pulsar(bench: Bench) -> AsyncIterator[Broker]:
    import pulsar as client_library

    from semel.transports.pulsar import PulsarMessageBus

    topic = f"bench-{uuid4().hex[:12]}"
    quiet = client_library.FileLogger(client_library.LoggerLevel.Error, os.devnull)
    client = client_library.Client(bench.server("pulsar"), logger=quiet)
    async with PulsarMessageBus(client) as bus:
        options = bus._for_producer  # noqa: SLF001  the same batching
        producer = await asyncio.to_thread(client.create_producer, f"{topic}-bare", **options)

        def send(wires: Sequence[WireMessage]) -> None:
            left, done = len(wires), threading.Event()

            def answered(result: Any, _: Any) -> None:
                nonlocal left
                assert result == client_library.Result.Ok
                left -= 1
                if not left:
                    done.set()

            for wire in wires:
                producer.send_async(
                    wire.body, answered, properties=wire.headers, partition_key=wire.key
                )
            assert done.wait(60)

        try:
            yield Broker(bus, topic, lambda wires: partial(asyncio.to_thread, send, wires))
        finally:
            await asyncio.to_thread(producer.close)
    await asyncio.to_thread(client.close)


BROKERS: dict[str, Callable[[Bench], AbstractAsyncContextManager[Broker]]] = {
    "Kafka": kafka,
    "RabbitMQ quorum": lambda bench: rabbitmq(bench, "quorum"),
    "RabbitMQ classic": lambda bench: rabbitmq(bench, "classic"),
    "NATS": nats,
    "Redis": redis,
    "Pulsar": pulsar,
}
