"""Flags, hooks and helpers of the bus contract."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from semel.envelope import MessageEnvelope
from semel.protocols import MessageBus
from semel.testing.reader import Reader


class BusHarness:
    """What a subclass of `MessageBusContract` may set or override."""

    pytestmark = pytest.mark.asyncio

    prefix = "ce_"  # of its CloudEvents headers
    ordered = True  # keeps the order of a key among the members of a group
    parallel_members = True  # members of a group hold messages of different keys at the same time
    replays_to_new_groups = True  # a new group gets what was published before it came
    redelivers_on_close = True  # what a closed member had not acked comes again
    counts_attempts = True  # `attempt` grows with each delivery
    delays_nack = True  # `nack(delay=...)` waits
    reports_lag = True  # `lag()` returns a number
    survives_restart = False  # messages outlive `restart`
    deduplicates = False  # publishing an id again delivers nothing
    breaks_keys = False  # `break_key` is implemented

    patience_seconds = 20.0
    quiet_seconds = 0.3

    async def prepare(self, bus: MessageBus, topic: str) -> None:
        """Create *topic* where the broker does not do so by itself."""

    async def restart(self, bus: MessageBus) -> None:
        """Restart the broker, or at least the connection."""
        await bus.close()
        await bus.start()

    async def break_key(self, bus: MessageBus, topic: str, key: str) -> MessageEnvelope:
        """Return a message of *key* that the broker will refuse for its own sake."""
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def topic(self, bus: MessageBus) -> str:
        name = f"contract-{uuid4().hex}"
        await self.prepare(bus, name)
        return name

    def needs(self, flag: str) -> None:
        if not getattr(self, flag):
            pytest.skip(f"this bus says {flag} = False")

    async def read(
        self, bus: MessageBus, topic: str, group: str = "group", prefetch: int = 100
    ) -> Reader:
        subscription = await bus.subscribe(topic, group=group, prefetch=prefetch)
        return Reader(subscription, patience_seconds=self.patience_seconds)

    async def connected(self, reader: Reader) -> None:
        """Return once the reader's subscription says that it is connected."""
        async with asyncio.timeout(self.patience_seconds):
            while not reader.subscription.is_connected():  # noqa: ASYNC110  no event tells it
                await asyncio.sleep(0.01)


def message(topic: str, **fields: Any) -> MessageEnvelope:
    """Return a message with a payload that does not matter."""
    if "body" not in fields:
        fields.setdefault("payload", {"n": 1})
    return MessageEnvelope(topic=topic, **fields)


def ids(messages: Sequence[MessageEnvelope]) -> list[str]:
    """Return the ids in order."""
    return [m.event_id for m in messages]


def by_key(messages: Sequence[MessageEnvelope]) -> dict[str | None, list[Any]]:
    """Return the payloads of each key in order."""
    keys: defaultdict[str | None, list[Any]] = defaultdict(list)
    for m in messages:
        keys[m.order_key].append(m.payload)
    return dict(keys)


def first_occurrences(messages: Sequence[MessageEnvelope]) -> list[MessageEnvelope]:
    """Return *messages* without those whose id came before."""
    first: dict[str, MessageEnvelope] = {}
    for message in messages:
        first.setdefault(message.event_id, message)
    return list(first.values())


async def work_until(
    done: asyncio.Event, workers: Iterable[Coroutine[Any, Any, None]], *, seconds: float
) -> None:
    """Run *workers* until *done* is set, then cancel them; the first error of one is raised."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    waiter = asyncio.create_task(done.wait())
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for pending in (waiter, *tasks):
            pending.cancel()
        await asyncio.gather(waiter, *tasks, return_exceptions=True)
