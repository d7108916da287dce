"""The rows that a projector holds in memory, and the order in which they may leave.

A key is in at most one batch at a time; behind an event that waits for its next attempt, the
others of its key wait too. Whenever something changes that memory cannot judge (an operator, a
pause that ends), the window forgets what is not in flight and reads it again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from semel.holds import Holds, Suspicion
from semel.lanes import Lanes
from semel.relay import Entry, Key, Read
from semel.states import OutboxStatus

# So many rows of one waiting key stay in memory; more are parked in the table.
_QUEUE = 64
# Instead of the number of a batch: the key waits for its next attempt, or for a probe.
_WAITING, _ASIDE = 0, -1
_PUBLISHING = OutboxStatus.PUBLISHING.value


class _Held:
    """A key that is in flight or waits, with the rows behind it."""

    __slots__ = ("batch", "overflow", "queue")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.queue: list[Entry] = []  # made for every key: a deque is ten times as large
        self.overflow = False


class Window:
    """Rows by state: ready, in flight, delayed, to be parked."""

    def __init__(self, capacity: int, *, grace_seconds: float = 0.0) -> None:
        self.capacity = capacity
        self._grace = grace_seconds
        self.lanes = Lanes()
        self.holds = Holds()
        self.to_park: list[Entry] = []
        self.overflowed = False
        #: Rows that had trouble while others passed: each goes in a batch of its own.
        self.alone: dict[int, Suspicion] = {}
        self._ready: deque[Entry] = deque()
        self._keys: dict[Key, _Held] = {}
        self._delayed: list[tuple[float, int, Entry]] = []
        self._size = 0
        self._batch = 0
        self._fetching = False
        self._settled: list[Entry] = []

    @property
    def room(self) -> int:
        """How many more rows may be read."""
        return self.capacity - self._size

    @property
    def is_hungry(self) -> bool:
        """Whether there is room for so many rows that a read is worth its statement."""
        return self.room >= self.capacity // 4

    def is_filling(self, limit: int, now: float) -> bool:
        """Tell whether fewer rows than *limit* are to be taken, and more are about to be read."""
        self._wake_delayed(now)
        return len(self._ready) < limit and any(lane.more for lane in self.lanes.values())

    @property
    def has_parked(self) -> bool:
        """Whether rows are parked for a reason that ends without a survey."""
        return self.holds.may_end or self.is_overflowing

    @property
    def is_overflowing(self) -> bool:
        """Whether a key has more rows than its queue holds, and the others are parked."""
        return self.overflowed or any(held.overflow for held in self._keys.values())

    def next_due(self) -> float | None:
        """When the next delayed row is due."""
        return self._delayed[0][0] if self._delayed else None

    def leave(self, partitions: Collection[int]) -> None:
        """Read no more of these partitions; what is in flight may land."""
        for partition in partitions:
            self.lanes[partition].leaving = True
        self._forget(lambda entry: entry.partition in partitions)

    def drop_lanes(self, partitions: Collection[int]) -> None:
        """Partitions are no longer ours: forget their rows, whatever state they are in."""
        for partition in partitions:
            lane = self.lanes.pop(partition, None)
            if lane is not None:
                self._size -= len(lane.known)
        self._forget(lambda entry: entry.partition not in self.lanes)

    def reset(self) -> None:
        """Forget all rows that are not in flight, and read from the beginning again."""
        self._forget(lambda _: True)
        self.holds.keys.clear()
        self.overflowed = False
        self.lanes.rewind()

    def _forget(self, condition: Callable[[Entry], bool]) -> None:
        self._ready = self._without(self._ready, condition)
        for held in self._keys.values():
            held.queue = list(self._without(held.queue, condition))
        kept = self._without((entry for _, _, entry in self._delayed), condition)
        heads = {id(entry) for entry in kept}
        self._delayed = [item for item in self._delayed if id(item[2]) in heads]
        heapq.heapify(self._delayed)
        waiting = {entry.key for entry in kept}
        for key, held in list(self._keys.items()):
            if held.batch == _WAITING and key not in waiting:
                self.free(key)
        self.to_park = list(self._without(self.to_park, condition))

    def _without(
        self, entries: Iterable[Entry], condition: Callable[[Entry], bool]
    ) -> deque[Entry]:
        kept: deque[Entry] = deque()
        for entry in entries:
            if condition(entry):
                self._unknow(entry)
            else:
                kept.append(entry)
        return kept

    def reads(self, *, everything: bool) -> Sequence[Read]:
        """Choose what to read next; until `feed` or `end_fetch` nothing is forgotten."""
        reads = self.lanes.choose(self.room, everything=everything)
        self._fetching = bool(reads)
        return reads

    def feed(self, reads: Sequence[Read], entries: Iterable[Entry], now: float) -> int:
        """Take in what a fetch returned; return how many rows lay where all seemed finished."""
        counts: dict[int, int] = {}
        late = 0
        lanes, ready = self.lanes, self._ready
        for entry in entries:
            partition, sequence = entry.partition, entry.sequence
            lane = lanes.get(partition)
            if lane is None or lane.leaving or not lane.surveyed:
                continue
            counts[partition] = counts.get(partition, 0) + 1
            lane.last = sequence
            if sequence in lane.known:
                continue
            if sequence <= lane.safe:
                late += 1
            lane.highest = max(lane.highest, sequence)
            lane.known[sequence] = entry
            self._size += 1
            if entry.status == _PUBLISHING:
                if not lane.taken_over:
                    # Its last owner lived to give the partition back: nobody died of it.
                    entry.status = OutboxStatus.FAILED if entry.attempts else OutboxStatus.NEW
                elif entry.attempts:
                    # Others shall have gone out before it is tried again: once, or a row that is
                    # read anew whenever its wait is over would wait for ever.
                    if lane.patient_until is None:
                        lane.patient_until = now + self._grace
                    entry.wait = max(entry.wait or 0.0, lane.patient_until - now)
            if entry.wait is not None:
                entry.wait = now + entry.wait
            ready.append(entry)
        for read in reads:
            lane = self.lanes.get(read.partition)
            if lane is not None and lane.surveyed:
                lane.more = counts.get(read.partition, 0) >= read.limit
        self.end_fetch()
        return late

    def end_fetch(self) -> None:
        """A fetch is over: rows that were acknowledged meanwhile may be forgotten now."""
        self._fetching = False
        for entry in self._settled:
            self._unknow(entry)
        self._settled.clear()

    def take(self, limit: int, now: float, *, solo: bool = True) -> list[Entry]:
        """Take a batch; a key that is in another batch, or waits, is passed over.

        A row that a process may have died of goes only if *solo*: nothing else is in flight.
        """
        self._wake_delayed(now)
        self._batch += 1
        batch: list[Entry] = []
        ready, keys, alone, number = self._ready, self._keys, self.alone, self._batch
        holds = self.holds if self.holds.are_any else ()
        while ready and len(batch) < limit:
            entry = ready.popleft()
            key = entry.key
            if entry in holds:
                self.to_park.append(entry)
                continue
            held = keys.get(key) if key is not None else None
            if held is not None and held.batch != number:
                self._queue(held, entry)
                continue
            if entry.wait is not None and entry.wait > now:
                self._delay(entry, entry.wait)
                continue
            deadly = entry.status == _PUBLISHING
            single = deadly or entry.sequence in alone
            if single and (batch or (deadly and not solo)):
                ready.appendleft(entry)
                break
            if key is not None and held is None:
                keys[key] = _Held(number)
            batch.append(entry)
            if single:
                break
        return batch

    def sample(self, limit: int, now: float) -> list[Entry]:
        """Take rows of different keys, as far as there are of different topics first."""
        self._wake_delayed(now)
        self._batch += 1
        first: list[Entry] = []
        others: list[Entry] = []
        rest: list[Entry] = []
        topics: set[str] = set()
        seen: set[Key] = set()
        for entry in self._ready:
            key = entry.key
            if key is not None and (key in seen or key in self._keys):
                rest.append(entry)
                continue
            if entry in self.holds:
                self.to_park.append(entry)
                continue
            if entry.wait is not None and entry.wait > now:
                self._delay(entry, entry.wait)
                continue
            if key is not None:
                seen.add(key)
            if entry.envelope.topic not in topics:
                topics.add(entry.envelope.topic)
                first.append(entry)
            else:
                others.append(entry)
        candidates = first + others
        chosen, left = candidates[:limit], candidates[limit:]
        self._ready = deque(sorted([*left, *rest], key=lambda entry: entry.sequence))
        for entry in chosen:
            if entry.key is not None:
                self._keys[entry.key] = _Held(self._batch)
        return chosen

    def _queue(self, held: _Held, entry: Entry) -> None:
        if held.batch <= _WAITING and len(held.queue) >= _QUEUE:
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
        if self.lanes.knows(entry):
            del self.lanes[entry.partition].known[entry.sequence]
            self._size -= 1
            self.alone.pop(entry.sequence, None)

    def _keep(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the rows that are still ours to send; forget those that we hand over."""
        kept = []
        for entry in entries:
            if self.lanes.knows(entry):
                if self.lanes[entry.partition].leaving:
                    self.settle(entry)
                else:
                    kept.append(entry)
        return kept

    def land(self, batch: Sequence[Entry]) -> None:
        """All rows of a batch were confirmed: free their keys."""
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
            self.holds.keys.add(key)
            self.to_park.extend(held.queue)
            self.overflowed = True
        elif held.queue:
            self._ready.extendleft(reversed(held.queue))

    def give_back(self, entries: Sequence[Entry]) -> None:
        """Rows of a batch were not sent: they go first again, in order."""
        for key in {entry.key for entry in entries if entry.key is not None}:
            self.free(key)
        self._ready.extendleft(reversed(self._keep(entries)))

    def delay(self, entries: Sequence[Entry], due: float) -> None:
        """The first of *entries* waits for its next attempt, the others of its key behind it."""
        head = self._set_aside(entries, _WAITING)
        if head is not None:
            heapq.heappush(self._delayed, (due, head.sequence, head))

    def retain(self, entries: Sequence[Entry]) -> Entry | None:
        """Keep the first of *entries* out of batches until it lands or is given back.

        The others of its key wait behind it. Returns None if it is not ours any more.
        """
        return self._set_aside(entries, _ASIDE)

    def _set_aside(self, entries: Sequence[Entry], mark: int) -> Entry | None:
        head, *rest = entries
        if not self._keep([head]):
            self.give_back(entries)
            return None
        if head.key is not None:
            held = self._keys.setdefault(head.key, _Held(mark))
            held.batch = mark
            held.queue[:0] = rest
        return head

    def recall(self, entries: Sequence[Entry]) -> None:
        """What we know of the first row is out of date: its key waits until it is read again."""
        head, *rest = entries
        self.settle(head)
        if head.key is not None:
            held = self._keys.pop(head.key, None)
            for entry in (*rest, *(held.queue if held is not None else ())):
                self.settle(entry)
            self.holds.keys.add(head.key)

    def _delay(self, entry: Entry, due: float) -> None:
        if entry.key is not None:
            held = self._keys.get(entry.key)
            if held is not None:
                self._queue(held, entry)
                return
            self._keys[entry.key] = _Held(_WAITING)
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
        self.holds.block(key)
        held = self._keys.pop(key, None)
        self.to_park.extend(behind)
        if held is not None:
            self.to_park.extend(held.queue)
