"""publish_many beside a bare producer of the same messages, in the same run.

Processor time decides, for it limits both and does not depend on who else uses this machine, as
the rates that are printed do.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from uuid import uuid4

import nats
import pytest
from redis.asyncio import Redis

from semel.testing.contracts.harness import message
from semel.transports.nats import NatsMessageBus
from semel.transports.redis import RedisMessageBus

COUNT = 2_000
BODY = b'{"text":"' + b"x" * 488 + b'"}'
CLOCKS = (time.perf_counter, time.process_time)


async def compare(bus, send_bare: Callable[[list], Awaitable[None]]) -> tuple[float, str]:
    """Return the ratio of processor time, and a line about both."""
    rounds: list[list[list[float]]] = [[], []]
    await bus.publish(message("speed"))
    for _ in range(7):
        sent = [message("speed", key=f"k{n % 100}", body=BODY) for n in range(COUNT)]
        wires = [bus.encode(m) for m in sent]
        began = [clock() for clock in CLOCKS]
        await send_bare(wires)
        between = [clock() for clock in CLOCKS]
        assert not any(await bus.publish_many(sent))
        ended = [clock() for clock in CLOCKS]
        rounds[0].append([b - a for a, b in zip(began, between, strict=True)])
        rounds[1].append([b - a for a, b in zip(between, ended, strict=True)])
    (wall, cpu), (our_wall, our_cpu) = (
        [median(column) for column in zip(*each, strict=True)] for each in rounds
    )
    return cpu / our_cpu, (
        f"bare {COUNT / wall:,.0f}/s, publish_many {COUNT / our_wall:,.0f}/s, "
        f"ratio {wall / our_wall:.2f}; of processor time {cpu / our_cpu:.2f}"
    )


@pytest.mark.nats
@pytest.mark.slow
async def test_nats(service, capsys):
    """publish_many costs at most the work of publish_async with a window, divided by 0.7."""
    stream = f"speed-{uuid4().hex[:12]}"
    client = await nats.connect(service("nats"))
    jetstream = client.jetstream(publish_async_max_pending=2000)

    async def send_bare(wires) -> None:
        answers = [
            await jetstream.publish_async(
                f"{stream}.bare.p{n % 16}",
                wire.body,
                headers={**wire.headers, "Nats-Msg-Id": wire.headers["message_id"]},
            )
            for n, wire in enumerate(wires)
        ]
        await asyncio.gather(*answers)

    async with NatsMessageBus(client, stream=stream) as bus:
        ratio, text = await compare(bus, send_bare)
    await jetstream.delete_stream(stream)
    await client.close()
    with capsys.disabled():
        print(f"\nnats: {text}")
    assert ratio >= 0.7


@pytest.mark.redis
@pytest.mark.slow
async def test_redis(service, capsys):
    """publish_many costs at most the work of a pipeline of XADD, divided by 0.7."""
    prefix = f"speed-{uuid4().hex[:12]}"
    async with Redis.from_url(service("redis")) as client:

        async def send_bare(wires) -> None:
            for start in range(0, COUNT, 1000):
                pipe = client.pipeline(transaction=False)
                for n, wire in enumerate(wires[start : start + 1000]):
                    pipe.xadd(f"{prefix}:bare:{n % 16}", {**wire.headers, "data": wire.body})
                await pipe.execute()

        async with RedisMessageBus(service("redis"), key_prefix=prefix) as bus:
            ratio, text = await compare(bus, send_bare)
        await client.delete(*[key async for key in client.scan_iter(f"{prefix}:*", count=1000)])
    with capsys.disabled():
        print(f"\nredis: {text}")
    assert ratio >= 0.7
