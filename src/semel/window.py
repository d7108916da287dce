"""The rows that a projector holds in memory, and the order in which they may leave.

A key is in at most one batch at a time; behind an event that waits for its next attempt, the
others of its key wait too. Whenever something changes that memory cannot judge (an operator, a
pause that ends), the window forgets what is not in flight and reads it again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from semel.relay import Entry, Key, Read
from semel.states import OutboxStatus

# So many rows of one waiting key stay in memory; more are parked in the table.
_QUEUE = 64


class Lane:
    """One owned partition."""

    __slots__ = (
        "epoch",
        "floor",
        "highest",
        "known",
        "last",
        "leaving",
        "more",
        "partition",
        "safe",
        "surveyed",
        "suspects",
    )

    def __init__(self, partition: int, epoch: int, *, suspects: int = 0) -> None:
        self.partition = partition
        self.epoch = epoch
        self.floor = 0
        self.safe = 0
        self.highest = 0
        self.last = 0
        self.known: set[int] = set()
        self.more = True
        self.leaving = False
        #: Before its blocked keys are known nothing of it may be sent.
        self.surveyed = False
        #: How many of the first rows a dead owner may have been publishing.
        self.suspects = suspects


class _Held:
    """A key that is in flight or waits, with the rows behind it."""

    __slots__ = ("batch", "overflow", "queue")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.queue: deque[Entry] = deque()
        self.overflow = False


class Window:
    """Rows by state: ready, in flight, delayed, to be parked."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lanes: dict[int, Lane] = {}
        self.blocked: set[Key] = set()
        self.held_topics: frozenset[str] = frozenset()
        self.held_tenants: frozenset[str] = frozenset()
        self.to_park: list[Entry] = []
        self.in_flight = 0
        self.overflowed = False
        self._ready: deque[Entry] = deque()
        self._keys: dict[Key, _Held] = {}
        self._held_keys: set[Key] = set()
        self._delayed: list[tuple[float, int, Entry]] = []
        self._size = 0
        self._batch = 0
        self._fetching = False
        self._settled: list[Entry] = []

    @property
    def room(self) -> int:
        """How many more rows may be read."""
        return self.capacity - self._size

    def could_take(self, now: float) -> bool:
        """Whether there is something to take now."""
        return bool(self._ready) or (bool(self._delayed) and self._delayed[0][0] <= now)

    def next_due(self) -> float | None:
        """When the next delayed row is due."""
        return self._delayed[0][0] if self._delayed else None

    def add_lane(self, partition: int, epoch: int, *, suspects: int = 0) -> None:
        """A partition became ours."""
        self.lanes[partition] = Lane(partition, epoch, suspects=suspects)

    def leave(self, partitions: Collection[int]) -> None:
        """Read no more of these partitions; what is in flight may land."""
        for partition in partitions:
            self.lanes[partition].leaving = True
        self._forget(lambda entry: entry.partition in partitions)

    def left(self) -> list[int]:
        """Return the partitions that nothing in flight keeps any more."""
        return [
            lane.partition for lane in self.lanes.values() if lane.leaving and not lane.known
        ]

    def drop_lanes(self, partitions: Collection[int]) -> None:
        """Partitions are no longer ours: forget their rows, whatever state they are in."""
        for partition in partitions:
            lane = self.lanes.pop(partition, None)
            if lane is not None:
                self._size -= len(lane.known)
        self._forget(lambda entry: entry.partition not in self.lanes)

    def reset(self) -> None:
        """Forget all rows that are not in flight, and read from the beginning again."""
        self._held_keys.clear()
        self._forget(lambda _: True)
        self.overflowed = False
        self.rewind()

    def rewind(self) -> None:
        """Read all lanes from the beginning."""
        for lane in self.lanes.values():
            lane.floor = 0
            lane.more = True

    def _forget(self, condition: Callable[[Entry], bool]) -> None:
        kept: deque[Entry] = deque()
        for entry in self._ready:
            self._keep_or_drop(entry, condition, kept)
        self._ready = kept
        for held in self._keys.values():
            queue: deque[Entry] = deque()
            for entry in held.queue:
                self._keep_or_drop(entry, condition, queue)
            held.queue = queue
        delayed: deque[Entry] = deque()
        times = {id(entry): due for due, _, entry in self._delayed}
        for _, _, entry in self._delayed:
            self._keep_or_drop(entry, condition, delayed)
        self._delayed = [(times[id(entry)], entry.sequence, entry) for entry in delayed]
        heapq.heapify(self._delayed)
        heads = {entry.key for _, _, entry in self._delayed}
        for key, held in list(self._keys.items()):
            if not held.batch and key not in heads:
                self.free(key)
        self.to_park = [entry for entry in self.to_park if not self._drop_if(entry, condition)]

    def _keep_or_drop(
        self, entry: Entry, condition: Callable[[Entry], bool], kept: deque[Entry]
    ) -> None:
        if not self._drop_if(entry, condition):
            kept.append(entry)

    def _drop_if(self, entry: Entry, condition: Callable[[Entry], bool]) -> bool:
        if condition(entry):
            self._unknow(entry)
            return True
        return False

    def reads(self, *, everything: bool) -> Sequence[Read]:
        """Choose the lanes to read next, each with a fair share of the room."""
        lanes = [
            lane
            for lane in self.lanes.values()
            if lane.surveyed and not lane.leaving and (everything or lane.more)
        ]
        if not lanes or self.room <= 0:
            return ()
        limit = max(8, self.room // len(lanes))
        self._fetching = True
        return [
            Read(lane.partition, lane.floor, limit, tuple(sorted(lane.known))) for lane in lanes
        ]

    def feed(self, reads: Sequence[Read], entries: Iterable[Entry], now: float) -> int:
        """Take in what a fetch returned; return how many rows lay where all seemed finished."""
        counts: dict[int, int] = {}
        late = 0
        for entry in entries:
            lane = self.lanes.get(entry.partition)
            if lane is None or lane.leaving:
                continue
            sequence = entry.sequence
            counts[entry.partition] = counts.get(entry.partition, 0) + 1
            lane.last = sequence
            if sequence in lane.known:
                continue
            if sequence <= lane.safe:
                late += 1
            if sequence > lane.highest:
                lane.highest = sequence
            lane.known.add(sequence)
            self._size += 1
            if entry.wait is not None and entry.wait > 0:
                self._delay(entry, now + entry.wait)
            else:
                self._ready.append(entry)
        for read in reads:
            lane = self.lanes.get(read.partition)
            if lane is not None:
                lane.more = counts.get(read.partition, 0) >= read.limit
        self.end_fetch()
        return late

    def end_fetch(self) -> None:
        """A fetch is over: rows that were acknowledged meanwhile may be forgotten now."""
        self._fetching = False
        for entry in self._settled:
            self._unknow(entry)
        self._settled.clear()

    def horizons(self, busy: Collection[int]) -> dict[int, int]:
        """Return up to where no writer can add rows any more, by partition."""
        return {
            lane.partition: lane.highest
            for lane in self.lanes.values()
            if lane.partition not in busy
        }

    def raise_floors(self, reads: Sequence[Read], horizons: Mapping[int, int]) -> None:
        """Skip finished rows from now on, up to horizons that the last fetch has passed."""
        for read in reads:
            lane = self.lanes.get(read.partition)
            horizon = horizons.get(read.partition)
            if lane is None or horizon is None or read.floor != lane.floor:
                continue
            if lane.more and lane.last < horizon:
                continue
            lowest = min(lane.known, default=horizon + 1)
            lane.floor = max(lane.floor, min(lowest - 1, horizon))
            lane.safe = max(lane.safe, lane.floor)

    def take(self, limit: int, now: float) -> list[Entry]:
        """Take a batch; a key that is in another batch, or waits, is passed over."""
        self._wake_delayed(now)
        self._batch += 1
        batch: list[Entry] = []
        ready, keys, number = self._ready, self._keys, self._batch
        while ready and len(batch) < limit:
            entry = ready.popleft()
            key = entry.key
            if self._is_held(entry, key):
                self.to_park.append(entry)
                continue
            if key is not None:
                held = keys.get(key)
                if held is not None and held.batch != number:
                    self._queue(held, entry)
                    continue
            if entry.status == OutboxStatus.PUBLISHING and batch:
                # A process may have died of this one: it goes alone.
                ready.appendleft(entry)
                break
            if key is not None and held is None:
                keys[key] = _Held(number)
            batch.append(entry)
            if entry.status == OutboxStatus.PUBLISHING:
                break
        self.in_flight += len(batch)
        return batch

    def sample(self, limit: int, now: float) -> list[Entry]:
        """Take a few rows of different keys and, as far as there are, different topics."""
        self._wake_delayed(now)
        self._batch += 1
        first: list[Entry] = []
        others: list[Entry] = []
        rest: deque[Entry] = deque()
        topics: set[str] = set()
        seen: set[Key] = set()
        for entry in self._ready:
            key = entry.key
            if key is not None and (key in seen or key in self._keys):
                rest.append(entry)
                continue
            if self._is_held(entry, key):
                self.to_park.append(entry)
                continue
            if key is not None:
                seen.add(key)
            if entry.envelope.topic not in topics:
                topics.add(entry.envelope.topic)
                first.append(entry)
            else:
                others.append(entry)
        chosen = (first + others)[:limit]
        left = (first + others)[limit:]
        self._ready = deque(sorted([*left, *rest], key=lambda entry: entry.sequence))
        for entry in chosen:
            if entry.key is not None:
                self._keys[entry.key] = _Held(self._batch)
        self.in_flight += len(chosen)
        return chosen

    def _is_held(self, entry: Entry, key: Key | None) -> bool:
        if key is not None and (key in self.blocked or key in self._held_keys):
            return True
        envelope = entry.envelope
        if envelope.topic in self.held_topics or envelope.tenant_id in self.held_tenants:
            if key is not None:
                self._held_keys.add(key)
            return True
        return False

    def _queue(self, held: _Held, entry: Entry) -> None:
        if not held.batch and len(held.queue) >= _QUEUE:
            held.overflow = True
        if held.overflow:
            self.to_park.append(entry)
        else:
            held.queue.append(entry)

    def settle(self, entry: Entry) -> None:
        """The row is finished in the table: SENT, DEAD, parked or gone."""
        if self._fetching:
            # A fetch that began before may still return it.
            self._settled.append(entry)
        else:
            self._unknow(entry)

    def _unknow(self, entry: Entry) -> None:
        lane = self.lanes.get(entry.partition)
        if lane is not None and entry.sequence in lane.known:
            lane.known.discard(entry.sequence)
            self._size -= 1

    def land(self, batch: Sequence[Entry]) -> None:
        """All rows of a batch were confirmed: free their keys."""
        self.in_flight -= len(batch)
        for entry in batch:
            if entry.key is not None:
                self.free(entry.key)

    def free(self, key: Key) -> None:
        """Let a key go on."""
        held = self._keys.pop(key, None)
        if held is None:
            return
        if held.overflow:
            # Rows of this key are parked: nothing of it may go before they are read again.
            self._held_keys.add(key)
            self.to_park.extend(held.queue)
            self.overflowed = True
        elif held.queue:
            self._ready.extendleft(reversed(held.queue))

    def give_back(self, entries: Sequence[Entry]) -> None:
        """Rows of a batch were not sent: they go first again, in order."""
        self.in_flight -= len(entries)
        for key in {entry.key for entry in entries if entry.key is not None}:
            self.free(key)
        mine = [entry for entry in entries if entry.partition in self.lanes]
        self._ready.extendleft(reversed(mine))

    def delay(self, entries: Sequence[Entry], due: float) -> None:
        """The first of *entries* waits for its next attempt, the others of its key behind it."""
        self.in_flight -= len(entries)
        head, *rest = entries
        if head.partition not in self.lanes:
            return
        if head.key is None:
            self._delay(head, due)
            return
        held = self._keys.setdefault(head.key, _Held(0))
        held.batch = 0
        held.queue.extendleft(reversed(rest))
        heapq.heappush(self._delayed, (due, head.sequence, head))

    def _delay(self, entry: Entry, due: float) -> None:
        if entry.key is not None:
            held = self._keys.get(entry.key)
            if held is not None:
                self._queue(held, entry)
                return
            self._keys[entry.key] = _Held(0)
        heapq.heappush(self._delayed, (due, entry.sequence, entry))

    def _wake_delayed(self, now: float) -> None:
        due: list[Entry] = []
        while self._delayed and self._delayed[0][0] <= now:
            due.append(heapq.heappop(self._delayed)[2])
        for entry in reversed(due):
            if entry.key is not None:
                self.free(entry.key)
            entry.wait = None
            self._ready.appendleft(entry)

    def block(self, key: Key, behind: Sequence[Entry]) -> None:
        """A DEAD event blocks its key: what waits behind it is parked."""
        self.in_flight -= len(behind)
        self.blocked.add(key)
        held = self._keys.pop(key, None)
        self.to_park.extend(behind)
        if held is not None:
            self.to_park.extend(held.queue)
