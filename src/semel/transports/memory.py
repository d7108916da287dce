"""A broker inside the process, for tests, demos and first steps."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Self

from semel.errors import BusError, ConfigurationError
from semel.transports.base import BaseMessageBus, Outcomes
from semel.transports.delivery import EntryDelivery
from semel.transports.faults import Faults
from semel.wire import Mode, WireMessage

_BREATH = 64  # deliveries after which other tasks get their turn


class InMemoryMessageBus(BaseMessageBus):
    """Topics, groups, redelivery and order per key, with real bytes; see `faults` for trouble.

    Nothing survives the process, and nothing leaves it: not for production.

    A group gets what was published since it first subscribed, and before that, unless
    *from_beginning* is false, the last *retention* messages of the topic. What a group has not
    acked yet is kept for it without limit. Members may come and go; the group stays.

    >>> bus = InMemoryMessageBus()
    >>> fault = bus.faults.reject(kind="transient", ratio=0.1)
    """

    system = "memory"

    def __init__(
        self,
        *,
        retention: int = 100_000,
        from_beginning: bool = True,
        seed: int = 0,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if retention < 0:
            raise ConfigurationError("retention is a number of messages, at least 0")
        self.faults = Faults(self._wake_all, seed=seed)
        self._retention = retention
        self._from_beginning = from_beginning
        self._published: deque[WireMessage] = deque(maxlen=retention)
        self._logs: dict[str, deque[WireMessage]] = {}
        self._groups: dict[str, dict[str, _Group]] = {}

    @property
    def published(self) -> list[WireMessage]:
        """What arrived here, in order, without the duplicates; the last *retention* messages."""
        return list(self._published)

    def published_ids(self, topic: str | None = None) -> list[str]:
        """Return the ids of what arrived here, in order, of one topic or of all."""
        return [
            wire.headers["message_id"]
            for wire in self._published
            if topic is None or wire.topic == topic
        ]

    async def ping(self) -> None:
        """Raise `BusError` during an outage."""
        await self._ready()
        self.faults.check_connection()

    async def _open(self) -> None:
        pass

    async def _close(self) -> None:
        pass

    async def _send(self, batch: Sequence[tuple[int, WireMessage]], outcomes: Outcomes) -> None:
        faults = self.faults
        faults.check_connection()
        if faults.delay:
            await asyncio.sleep(faults.delay)
            faults.check_connection()
        touched: set[str] = set()
        try:
            for position, (index, wire) in enumerate(batch):
                faults.check_position(position)
                if not outcomes.admits(index):
                    continue
                message = outcomes.messages[index]
                if (rejected := faults.rejection(message)) is not None:
                    outcomes.fail(index, rejected)
                    continue
                self._append(wire, faults.copies(message))
                touched.add(wire.topic)
                if (lost := faults.loss(message)) is not None:
                    outcomes.fail(index, lost)
        finally:
            for topic in touched:
                for group in self._groups.get(topic, {}).values():
                    group.wake()

    def _append(self, wire: WireMessage, copies: int) -> None:
        log = self._logs.get(wire.topic)
        if log is None:
            log = self._logs[wire.topic] = deque(maxlen=self._retention)
        # Shared by all groups: nobody may write into another one's message.
        wire = WireMessage(wire.topic, wire.key, MappingProxyType(wire.headers), wire.body)
        self._published.append(wire)
        for _ in range(copies):
            log.append(wire)
            for group in self._groups.get(wire.topic, {}).values():
                group.add(wire)

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> _Subscription:
        self.faults.check_connection()
        groups = self._groups.setdefault(topic, {})
        if group not in groups:
            groups[group] = _Group(self.faults)
            for wire in self._logs.get(topic, ()) if self._from_beginning else ():
                groups[group].add(wire)
        return _Subscription(groups[group], prefetch)

    def _wake_all(self) -> None:
        for groups in self._groups.values():
            for group in groups.values():
                group.wake()


@dataclass(slots=True, eq=False)
class _Entry:
    offset: int
    wire: WireMessage
    lane: _Lane
    attempts: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    """The messages of one key that a group has not acked; a message without key has its own."""

    key: str | None
    waiting: list[tuple[int, _Entry]] = field(default_factory=list)  # a heap by offset
    owner: _Subscription | None = None  # who holds unacked messages of this key
    unacked: int = 0
    delayed: int = 0  # nacked with a delay that has not passed


class _Group:
    """What one group has not acked yet, and who may have which key.

    A lane with a deliverable head is announced with its offset, in the heap of its owner or, if
    nobody holds the key, in the group's. Announcements that are out of date are skipped.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.members: list[_Subscription] = []
        self.open: list[tuple[int, int, _Lane]] = []
        self.size = 0
        self._lanes: dict[str, _Lane] = {}
        self._next = 0
        self._announced = 0

    def add(self, wire: WireMessage) -> None:
        lane = _Lane(wire.key) if wire.key is None else self._lanes.get(wire.key)
        if lane is None:
            lane = self._lanes[wire.key or ""] = _Lane(wire.key)
        self.size += 1
        self._next += 1
        heapq.heappush(lane.waiting, (self._next, _Entry(self._next, wire, lane)))
        if len(lane.waiting) == 1:
            self._announce(lane)

    def take(self, member: _Subscription) -> _Entry | None:
        """Give *member* the oldest message that it may have."""
        self._skip_outdated(member.held, member)
        self._skip_outdated(self.open, None)
        heap = self.open
        if member.held and (not heap or member.held[0] < heap[0]):
            heap = member.held
        if not heap:
            return None
        lane = heapq.heappop(heap)[2]
        entry = heapq.heappop(lane.waiting)[1]
        entry.attempts += 1
        lane.unacked += 1
        lane.owner = member if lane.key is not None else None
        self._announce(lane)
        return entry

    def settle(self, entry: _Entry, *, again: bool, delay: float = 0.0) -> None:
        """Forget *entry*, or put it back into its place."""
        lane = entry.lane
        lane.unacked -= 1
        if not lane.unacked:
            lane.owner = None  # the next message of the key may go to any member
        if again:
            heapq.heappush(lane.waiting, (entry.offset, entry))
            if delay > 0:
                lane.delayed += 1
                asyncio.get_running_loop().call_later(delay, self._due, lane)
        else:
            self.size -= 1
        if not lane.waiting and not lane.unacked and lane.key is not None:
            del self._lanes[lane.key]
        if again or not lane.unacked:
            self._announce(lane)
        self.wake()

    def wake(self) -> None:
        for member in self.members:
            member.wake.set()

    def _due(self, lane: _Lane) -> None:
        lane.delayed -= 1
        self._announce(lane)
        self.wake()

    def _announce(self, lane: _Lane) -> None:
        if lane.waiting and not lane.delayed:
            heap = self.open if lane.owner is None else lane.owner.held
            self._announced += 1
            heapq.heappush(heap, (lane.waiting[0][0], self._announced, lane))

    def _skip_outdated(
        self, heap: list[tuple[int, int, _Lane]], owner: _Subscription | None
    ) -> None:
        while heap:
            offset, _, lane = heap[0]
            if (
                lane.waiting
                and lane.waiting[0][0] == offset
                and lane.owner is owner
                and not lane.delayed
            ):
                return
            heapq.heappop(heap)


class _Subscription:
    """One member of a group; at most *prefetch* deliveries are open at a time."""

    def __init__(self, group: _Group, prefetch: int) -> None:
        self.wake = asyncio.Event()
        self.held: list[tuple[int, int, _Lane]] = []
        self._group = group
        self._prefetch = prefetch
        self._open: dict[int, _Entry] = {}
        self._count = 0
        self._closed = False
        group.members.append(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryDelivery:
        self._count += 1
        if self._count % _BREATH == 0:
            await asyncio.sleep(0)
        while not self._closed:
            if self.is_connected() and len(self._open) < self._prefetch:
                entry = self._group.take(self)
                if entry is not None:
                    self._open[entry.offset] = entry
                    return EntryDelivery(
                        self, entry, entry.attempts, partial(getattr, entry, "wire")
                    )
            self.wake.clear()
            await self.wake.wait()
        raise StopAsyncIteration

    def is_connected(self) -> bool:
        return not self._closed and not self._group.faults.outage

    async def lag(self) -> int | None:
        return self._group.size

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._group.members.remove(self)
        self.wake.set()
        for entry in list(self._open.values()):
            self.settle(entry, entry.attempts, again=True)

    def settle(self, entry: _Entry, attempt: int, *, again: bool, delay: float = 0.0) -> None:
        if entry.offset not in self._open or entry.attempts != attempt:
            raise BusError(
                "this delivery was acked or nacked before, or went back to the broker when its "
                "subscription closed"
            )
        del self._open[entry.offset]
        self._group.settle(entry, again=again, delay=delay)
