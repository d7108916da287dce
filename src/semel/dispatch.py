"""Deliveries of one subscription: keys in order, different keys in parallel."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from semel.dead_letters import Reason
from semel.envelope import MessageEnvelope
from semel.protocols import Clock, Delivery
from semel.states import InboxStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision not to run a message, or not to run it again."""

    status: InboxStatus
    reason: Reason
    detail: str
    attempts: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A delivery on its way through the consumer."""

    delivery: Delivery
    message: MessageEnvelope | None
    verdict: Verdict | None = None
    ignored: bool = False
    failures: int = 0
    trouble: int = 0
    restarts: int = 0
    counted: bool = False
    wait: float = 0.0
    done: bool = False

    @property
    def key(self) -> Hashable:
        """What must stay in order; an item without a key is alone."""
        key = self.delivery.wire.key if self.message is None else self.message.order_key
        if key is None:
            return self
        return (None if self.message is None else self.message.tenant_id, key)

    @property
    def is_fresh(self) -> bool:
        """Tell whether the message may share a transaction with others."""
        return (
            self.verdict is None
            and not self.ignored
            and not self.failures
            and not self.trouble
            and self.delivery.attempt <= 1
        )


@dataclass(slots=True, eq=False)
class Lane:
    """The deliveries of one key, in order."""

    key: Hashable
    items: deque[Item] = field(default_factory=deque)

    def take(self, limit: int) -> list[Item]:
        """Return the head, and what may go with it."""
        taken: list[Item] = []
        for item in self.items:
            if len(taken) >= limit or (taken and not item.is_fresh):
                break
            taken.append(item)
            if not item.is_fresh:
                break
        return taken


class Turns:
    """Many run at the same time, or one alone; who wants to be alone comes first."""

    def __init__(self) -> None:
        self._running = 0
        self._loners = 0
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Run beside others."""
        while self._loners:
            await self._change()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._changed.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run while nobody else does."""
        self._loners += 1
        try:
            async with self._lock:
                while self._running:
                    await self._change()
                yield
        finally:
            self._loners -= 1
            self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Dispatcher:
    """Hands items to *work* in *concurrency* tasks, at most *prefetch* at a time in all.

    *work* marks each item as done, or says how long its key has to wait.
    A key that waits occupies no task.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[None]],
        *,
        concurrency: int,
        prefetch: int,
        batch_size: int,
        clock: Clock,
    ) -> None:
        self._work = work
        self._batch_size = batch_size
        self._clock = clock
        self._room = asyncio.Semaphore(prefetch)
        self._lanes: dict[Hashable, Lane] = {}
        self._ready: asyncio.Queue[Lane | None] = asyncio.Queue()
        self._sleepers: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._stopping = False
        self._running: dict[int, float] = {}
        self._held = 0
        self._workers = [asyncio.create_task(self._serve(n)) for n in range(concurrency)]

    @property
    def held(self) -> int:
        """How many deliveries are neither acked nor handed back."""
        return self._held

    def oldest_running_seconds(self) -> float | None:
        """For how long the oldest of the running handlers has been at it."""
        if not self._running:
            return None
        return self._clock.monotonic() - min(self._running.values())

    @property
    def is_paused(self) -> bool:
        """Tell whether nothing new is started."""
        return not self._open.is_set()

    def pause(self) -> None:
        """Start nothing new."""
        self._open.clear()

    def resume(self) -> None:
        """Go on."""
        self._open.set()

    async def put(self, item: Item) -> None:
        """Accept an item; waits while there are too many."""
        await self._room.acquire()
        self._held += 1
        lane = self._lanes.get(item.key)
        if lane is None:
            lane = self._lanes[item.key] = Lane(item.key)
            self._ready.put_nowait(lane)
        lane.items.append(item)

    async def stop(self, *, timeout: float) -> None:  # noqa: ASYNC109  not a deadline of one call
        """Finish what runs; after *timeout* seconds cancel it. What was not begun is dropped."""
        self._stopping = True
        self._open.set()
        for sleeper in self._sleepers:
            sleeper.cancel()
        for _ in self._workers:
            self._ready.put_nowait(None)
        _, late = await asyncio.wait(self._workers, timeout=timeout)
        for worker in late:
            worker.cancel()
        await asyncio.gather(*self._workers, *self._sleepers, return_exceptions=True)
        self._held = 0
        self._lanes.clear()

    async def _serve(self, number: int) -> None:
        while not self._stopping:
            lane = await self._ready.get()
            await self._open.wait()
            if lane is None or self._stopping:
                return
            lanes, items = self._gather(lane)
            self._running[number] = self._clock.monotonic()
            try:
                await self._work(items)
            finally:
                del self._running[number]
                for used in lanes:
                    self._release(used)

    def _gather(self, lane: Lane) -> tuple[list[Lane], list[Item]]:
        lanes, items = [lane], lane.take(self._batch_size)
        while items[0].is_fresh and len(items) < self._batch_size and not self._ready.empty():
            other = self._ready.get_nowait()
            if other is None or not other.items[0].is_fresh:
                self._ready.put_nowait(other)
                break
            lanes.append(other)
            items += other.take(self._batch_size - len(items))
        return lanes, items

    def _release(self, lane: Lane) -> None:
        while lane.items and lane.items[0].done:
            lane.items.popleft()
            self._held -= 1
            self._room.release()
        if self._stopping:
            return
        if not lane.items:
            del self._lanes[lane.key]
        elif lane.items[0].wait > 0:
            sleeper = asyncio.create_task(self._later(lane, lane.items[0].wait))
            self._sleepers.add(sleeper)
            sleeper.add_done_callback(self._sleepers.discard)
        else:
            self._ready.put_nowait(lane)

    async def _later(self, lane: Lane, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._ready.put_nowait(lane)
