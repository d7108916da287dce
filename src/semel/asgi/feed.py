"""The newest messages of some topics, in memory once per process, for any number of readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from semel.envelope import MessageEnvelope
from semel.errors import SemelError, describe
from semel.protocols import LogEntry, MessageLog
from semel.retry import RetryPolicy
from semel.tasks import unbroken
from semel.wire import WireMessage, decode

T = TypeVar("T")

#: How far somebody has read: the next position of each log.
Cursor = dict[int, int]

BATCH = 100
_REPLAYS = 4  # at the same time, however many clients come back at once
_KEEP_BYTES = 16 * 1024 * 1024
_TROUBLE = RetryPolicy(max_attempts=1, base_seconds=0.1, max_seconds=5.0)
_logger = logging.getLogger("semel.live")


class Item(NamedTuple):
    """What stands at a place of a log; without a message if nobody can read it."""

    log: int
    position: int
    message: MessageEnvelope | None
    size: int

    @property
    def next(self) -> int:
        """The position behind it."""
        return self.position + 1


class Gap(NamedTuple):
    """Messages below *next* are gone that we did not see."""

    log: int
    next: int
    size: int = 0


class Feed:
    """Follows *topics* of *log* and keeps the last *keep* messages; begins with the newest there.

    *topics* maps the log's name of each topic to its public one.
    """

    def __init__(
        self, log: MessageLog, topics: Mapping[str, str], *, keep: int, poll_seconds: float
    ) -> None:
        self.log = log
        self.topics = dict(topics)
        self.first = 0  # the number of the oldest item; each next one has the next number
        self.items: list[Item | Gap] = []
        self.base: Cursor = {}  # before the oldest item
        self.tip: Cursor = {}  # behind the newest
        self.logs: dict[str, Collection[int]] = {}
        self.is_ready = False
        self.news = asyncio.Event()  # a new one after each set()
        self._replays = asyncio.Semaphore(_REPLAYS)
        self._keep = keep
        self._poll_seconds = poll_seconds
        self._bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._questions: set[asyncio.Task[Any]] = set()

    @property
    def end(self) -> int:
        """The number that the next item will have."""
        return self.first + len(self.items)

    def start(self) -> None:
        """Begin to follow. Idempotent."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._follow(topic), name=f"semel-live-{topic}")
                for topic in self.topics
            ]

    async def close(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._questions, return_exceptions=True)

    def announce(self) -> None:
        """Wake all readers."""
        self.news.set()
        self.news = asyncio.Event()

    async def read(self, topic: str, positions: Mapping[int, int]) -> list[Item]:
        """Read again what is not in memory any more."""
        found = await self._ask(self.log.read(topic, positions, limit=BATCH))
        return [self._item(topic, entry) for entry in found]

    async def bounds(self) -> dict[int, tuple[int, int]]:
        """Return what can be read again."""
        each = [await self._ask(self.log.bounds(topic)) for topic in self.topics]
        return {log: bounds for found in each for log, bounds in found.items()}

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        # In a task of its own: a client that leaves must not cut a statement off, because the
        # connection, which others use, would have to be thrown away.
        task = asyncio.create_task(self._answer(question))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)
        return await asyncio.shield(task)

    async def _answer(self, question: Coroutine[Any, Any, T]) -> T:
        async with self._replays:
            return await question

    async def _follow(self, topic: str) -> None:
        wake = asyncio.Event()
        unsubscribe = None
        failures = 0
        try:
            while True:
                wake.clear()
                try:
                    if topic not in self.logs:
                        await unbroken(self._begin(topic))
                        unsubscribe = unsubscribe or self.log.listen(wake.set)
                    more = await unbroken(self._advance(topic))
                    failures = 0
                except Exception as error:  # noqa: BLE001  the database may come back
                    failures += 1
                    _logger.warning("cannot follow %s: %s", topic, describe(error))
                    await asyncio.sleep(max(0.1, _TROUBLE.delay(failures)))
                    continue
                if not more:
                    await _wait(wake, self._poll_seconds)
        finally:
            if unsubscribe is not None:
                unsubscribe()

    async def _begin(self, topic: str) -> None:
        # A little before the end: clients that come back after a restart are served from memory.
        bounds = await self.log.bounds(topic)
        back = max(1, self._keep // (len(self.topics) * max(1, len(bounds))))
        start = {log: max(first, end - back) for log, (first, end) in bounds.items()}
        found: list[LogEntry] = []
        goal = {log: end for log, (_, end) in bounds.items()}
        place = dict(start)
        while behind := {log: at for log, at in place.items() if at < goal[log]}:
            batch = await self.log.read(topic, behind, limit=BATCH)
            if not batch:
                break
            found += batch
            place |= {entry.log: entry.position + 1 for entry in batch}
        self.base |= start
        self.tip |= place
        self.logs[topic] = tuple(bounds)
        for entry in found:
            self._append(self._item(topic, entry))
        self.is_ready = self.logs.keys() == self.topics.keys()
        self.announce()

    async def _advance(self, topic: str) -> bool:
        """Read what is new; tell whether there may be more."""
        bounds, before = await self.log.bounds(topic), self.end
        for log, (first, end) in bounds.items():
            known = self.tip.get(log)
            if known is None or not first <= known <= end:
                # Removed before we read it, or the database was set back.
                self.tip[log] = first if known is not None and known < first else end
                self._append(Gap(log, self.tip[log]))
        self.logs[topic] = tuple(bounds)
        behind = {log: self.tip[log] for log, (_, end) in bounds.items() if self.tip[log] < end}
        found = await self.log.read(topic, behind, limit=BATCH) if behind else []
        for entry in found:
            self.tip[entry.log] = entry.position + 1
            self._append(self._item(topic, entry))
        if self.end > before:
            self.announce()
        return bool(found)

    def _item(self, topic: str, entry: LogEntry) -> Item:
        wire = entry.wire
        try:
            message = decode(WireMessage(self.topics[topic], wire.key, wire.headers, wire.body))
        except SemelError:
            # Nothing to show; consumers park it.
            return Item(entry.log, entry.position, None, 0)
        return Item(entry.log, entry.position, message, len(wire.body))

    def _append(self, item: Item | Gap) -> None:
        self.base.setdefault(item.log, item.next)
        self.items.append(item)
        self._bytes += item.size
        while len(self.items) > self._keep or (self._bytes > _KEEP_BYTES and len(self.items) > 1):
            oldest = self.items.pop(0)
            self.first += 1
            self._bytes -= oldest.size
            self.base[oldest.log] = oldest.next


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
