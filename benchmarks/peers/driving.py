"""What the drivers have in common; runs in each peer's own environment."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

DSN = os.environ["BENCH_DSN"]
SQLALCHEMY_URL = DSN.replace("postgresql://", "postgresql+asyncpg://", 1)
TEXT = "x" * 480
PAYLOAD = {"text": TEXT}
BUSINESS = "CREATE TABLE business (id SERIAL PRIMARY KEY, text VARCHAR(500))"
INSERT = "INSERT INTO business (text) VALUES ($1)"
KEYS = 997

Verb = Callable[..., Awaitable[Mapping[str, float]]]


def main(**verbs: Verb) -> None:
    """Do what the command line asks for; print the figures by name."""
    logging.disable(logging.ERROR)
    verb, options = sys.argv[1], json.loads(sys.argv[2])

    async def run() -> None:
        print(json.dumps(await verbs[verb](**options)), flush=True)
        os._exit(0)  # not every library lets go of a task that is cancelled

    asyncio.run(run())


async def writes(
    transaction: Callable[[int, int], Awaitable[None]], transactions: int, connections: int
) -> dict[str, float]:
    """Transactions per second with no event, 1 and 10; *transaction* gets events and a number."""
    figures = {}
    await rate(lambda number: transaction(1, number), 2 * connections, connections)
    for events, name in ((0, ", plain"), (1, ", 1 event"), (10, ", 10 events")):
        figures[name] = await rate(
            lambda number, events=events: transaction(events, number), transactions, connections
        )
    return figures


async def rate(one: Callable[[int], Awaitable[Any]], count: int, workers: int) -> float:
    """How often per second *one* was called, by so many workers."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await one(number)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return count / (time.perf_counter() - began)


class Counter:
    """Counts what a sink got from when it was made, and says when that is enough."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self._began = time.perf_counter()
        self._full = asyncio.Event()
        self._wanted = wanted

    @property
    def is_full(self) -> bool:
        return self._full.is_set()

    def add(self) -> None:
        self.count += 1
        if self.count >= self._wanted:
            self._full.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until full, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._full.wait()

    def rate(self) -> float:
        """Messages per second until now."""
        return self.count / (time.perf_counter() - self._began)
