"""A bus without a log, copied into one: nothing is missed, and keys stay in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from semel import InMemoryMessageBus, MessageEnvelope
from semel.asgi.mirror import Mirror
from semel.wire import WireMessage, decode

HOUR = timedelta(hours=1)


@asynccontextmanager
async def mirroring(source: Any, target: Any) -> AsyncIterator[None]:
    mirror = Mirror(source, target, group="shop.live", max_age=HOUR)
    mirror.start([("orders", "live.orders")])
    try:
        yield
    finally:
        await mirror.close()


def message(payload: Any, **fields: Any) -> MessageEnvelope:
    return MessageEnvelope(topic="orders", payload=payload, **{"key": "one", **fields})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def copies(bus: InMemoryMessageBus) -> list[Any]:
    """The payloads in the order of their first arrival: a copy may come twice."""
    return list(dict.fromkeys(decode(wire).payload for wire in bus.published))


async def test_copies_are_as_they_were() -> None:
    """Id, type, tenant, metadata and bytes; only the topic is another one."""
    async with InMemoryMessageBus() as source, InMemoryMessageBus() as target:
        sent = message("x", event_type="OrderPlaced", tenant_id="red", metadata={"user_id": "ada"})
        await source.publish(sent)
        async with mirroring(source, target):
            await until(lambda: bool(target.published))

    copy = decode(target.published[0])
    assert ("live.orders", sent.event_id) == (copy.topic, copy.event_id)
    assert (sent.event_type, sent.tenant_id, sent.key) == (
        copy.event_type,
        copy.tenant_id,
        copy.key,
    )
    assert (sent.metadata, sent.body) == (copy.metadata, copy.body)


async def test_the_target_goes_away_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """What could not be written is not acknowledged: it comes again, in order."""
    async with (
        InMemoryMessageBus() as source,
        InMemoryMessageBus() as target,
        mirroring(source, target),
    ):
        await source.publish_many([message(n) for n in range(10)])
        await until(lambda: len(copies(target)) == 10)
        target.faults.outage = True
        await source.publish_many([message(n) for n in range(10, 30)])
        await until(lambda: "cannot copy orders" in caplog.text)
        target.faults.outage = False
        await until(lambda: len(copies(target)) == 30)

    assert list(range(30)) == copies(target)


async def test_the_source_is_closed_and_opened(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that was away is read on from where it was."""
    async with (
        InMemoryMessageBus() as source,
        InMemoryMessageBus() as target,
        mirroring(source, target),
    ):
        await source.publish(message(0))
        await until(lambda: copies(target) == [0])
        await source.close()
        await until(lambda: "cannot copy orders" in caplog.text)
        await source.start()
        await source.publish(message(1))
        await until(lambda: copies(target) == [0, 1])


async def test_processes_share_the_work_and_take_over() -> None:
    """One group for all: another process goes on where the first one ended."""
    async with InMemoryMessageBus() as source, InMemoryMessageBus() as target:
        async with mirroring(source, target):
            await source.publish(message(0))
            await until(lambda: copies(target) == [0])
        await source.publish(message(1))
        async with mirroring(source, target), mirroring(source, target):
            await source.publish_many([message(n, key=f"k{n % 5}") for n in range(2, 40)])
            await until(lambda: len(copies(target)) == 40)

    assert 40 == len(target.published)


async def test_history_is_passed_over() -> None:
    """A new group gets everything that the broker keeps; old events are not news."""
    async with InMemoryMessageBus() as source, InMemoryMessageBus() as target:
        old = datetime.now(UTC) - 2 * HOUR
        await source.publish_many([message("old", occurred_at=old), message("new")])
        async with mirroring(source, target):
            await until(lambda: copies(target) == ["new"])


async def test_nonsense_is_passed_over() -> None:
    """A message without an id cannot be shown, and does not hold up what follows."""
    async with InMemoryMessageBus() as source, InMemoryMessageBus() as target:
        source._append(WireMessage("orders", "one", {}, b"nonsense"), 1)
        await source.publish(message("new"))
        async with mirroring(source, target):
            await until(lambda: copies(target) == ["new"])
