"""A member of a group on the database bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from semel.clock import SystemClock
from semel.errors import BusError, describe
from semel.failpoints import failpoint
from semel.transports.database_log import Entry, Log
from semel.transports.database_share import Share
from semel.transports.delivery import EntryDelivery

if TYPE_CHECKING:
    from semel.sqlalchemy.bus import SqlAlchemyBusStore
    from semel.sqlalchemy.bus_groups import Member, Row

_BREATH = 64  # deliveries after which other tasks get their turn
_WINDOW = 20  # messages in memory at least, so that a small prefetch does not mean many fetches
_GAP_SECONDS = 0.005  # the shortest time between two fetches if the first found nothing
_BUSY_SECONDS = 0.02  # the first pause without a message; each next one is longer
_TROUBLE_SECONDS = 5.0  # the longest pause while the database does not answer
_CLOSE_SECONDS = 10.0
_logger = logging.getLogger("semel.bus")


class Pace(NamedTuple):
    """How often a member turns to the database."""

    poll_seconds: float
    commit_seconds: float


class DatabaseSubscription:
    """Delivers what it reads of its logs, and stores how far they are acked.

    One task talks to the database, one statement after the other; deliveries and acks never
    wait for it. At most *prefetch* deliveries are open, about twice as many are in memory.
    """

    def __init__(
        self,
        store: SqlAlchemyBusStore,
        member: Member,
        *,
        prefetch: int,
        pace: Pace,
        on_change: Callable[[DatabaseSubscription], None],
    ) -> None:
        self.member = member
        self._store = store
        self._share = Share(store, member)
        self._prefetch = prefetch
        self._window = max(_WINDOW, 2 * prefetch)
        self._pace = pace
        self._on_change = on_change
        self._clock = SystemClock()
        self._count = 0
        self._arrived = asyncio.Event()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._woken = True
        self._shuffled = False
        self._troubled = False
        self._fetch_at = 0.0
        self._poll_at = 0.0
        self._idle = _BUSY_SECONDS
        self._dirty_since: float | None = None

    async def start(self) -> None:
        """Join the group; raises if the database does not answer."""
        await self._share.tick()
        self._task = asyncio.create_task(self._run(), name=f"semel-bus-{self.member.topic}")
        self._on_change(self)

    @property
    def partitions(self) -> frozenset[int]:
        """The logs that are read here, by their `bus_partition.id`."""
        return frozenset(self._share.logs)

    def wake(self) -> None:
        """Look for messages now."""
        self._woken = True
        self._wake.set()

    def shuffle(self) -> None:
        """Look for a change among the members now."""
        self._shuffled = True
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryDelivery:
        self._count += 1
        if self._count % _BREATH == 0:
            await asyncio.sleep(0)
        while not self._stop.is_set():
            entry = self._take()
            if entry is not None:
                return EntryDelivery(self, entry, entry.attempts, partial(getattr, entry, "wire"))
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration

    def is_connected(self) -> bool:
        """Tell whether our leases are alive, so that we may deliver."""
        return not self._stop.is_set() and not self._troubled and self._share.is_valid()

    async def lag(self) -> int | None:
        """Return how many messages of the topic this group has not acked, whoever reads them."""
        try:
            seats = await self._store.seats(self.member)
        except Exception as error:
            raise BusError(describe(error)) from error
        total = 0
        for seat in seats:
            log = self._share.logs.get(seat.partition_id)
            if log is not None and log.epoch == seat.epoch:
                total += max(0, seat.next - log.fetched) + log.held
            else:
                total += seat.next - max(seat.position, seat.first)
        return total

    async def close(self) -> None:
        """Stop; what was not acked goes to other members at once. Idempotent."""
        self._stop.set()
        self._wake.set()
        self._arrived.set()
        task = self._task
        if task is None or task.done():
            return
        await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
        if not task.done():
            # Its leases run out by themselves.
            task.cancel()
            await asyncio.wait({task})

    def settle(self, entry: Entry, attempt: int, *, again: bool, delay: float = 0.0) -> None:
        """Ack *entry*, which is stored within `commit_seconds`, or deliver it *again*."""
        log = entry.log
        if self._stop.is_set() or self._share.logs.get(log.partition_id) is not log:
            raise BusError(
                "this delivery went back to the group: its subscription closed or lost its lease"
            )
        if not entry.is_open or entry.attempts != attempt:
            raise BusError("this delivery was acked or nacked before")
        if not again:
            self._share.ack(entry)
            if self._dirty_since is None and log.watermark != log.committed:
                self._dirty_since = self._clock.monotonic()
                self._wake.set()
        else:
            self._share.put_back(entry, due=delay <= 0)
            if delay > 0:
                asyncio.get_running_loop().call_later(delay, self._due, entry)
        if log.leaving or self._wants_more():
            self._wake.set()
        self._arrived.set()

    def _due(self, entry: Entry) -> None:
        self._share.revive(entry)
        self._arrived.set()

    def _take(self) -> Entry | None:
        if self._share.open >= self._prefetch or not self._share.is_valid():
            return None
        entry = self._share.take()
        if self._wants_more():
            self._wake.set()
        return entry

    async def _run(self) -> None:
        unsubscribe = self._store.signal.subscribe(self.wake)
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    await self._step()
                except Exception as error:  # noqa: BLE001  the database may come back
                    failures += 1
                    self._fail(error, first=failures == 1)
                    await _wait(self._stop, min(_TROUBLE_SECONDS, 0.05 * 2**failures))
                else:
                    failures, self._troubled = 0, False
                    await _wait(self._wake, self._idle_seconds())
                    self._wake.clear()
            await self._retire()
        finally:
            unsubscribe()
            self._stop.set()
            self._arrived.set()

    def _fail(self, error: Exception, *, first: bool) -> None:
        self._troubled = self._woken = True
        _logger.log(
            logging.WARNING if first else logging.DEBUG,
            "group %s of %s waits for the database: %s",
            self.member.group,
            self.member.topic,
            describe(error),
        )

    async def _step(self) -> None:
        now = self._clock.monotonic()
        if self._shuffled or now >= self._share.next_tick:
            await self._tick()
        await self._hand_over()
        if (
            self._may_fetch()
            and now >= self._fetch_at
            and (self._wants_more() or now >= self._poll_at)
        ):
            await self._fetch(everything=self._woken or now >= self._poll_at)
        elif self._dirty_since is not None and now >= self._dirty_since + self._pace.commit_seconds:
            await self._commit([])

    def _idle_seconds(self) -> float:
        moments = [self._share.next_tick]
        if self._dirty_since is not None:
            moments.append(self._dirty_since + self._pace.commit_seconds)
        if self._may_fetch():
            moments.append(self._fetch_at if self._wants_more() else self._poll_at)
        return max(0.0, min(moments) - self._clock.monotonic())

    def _may_fetch(self) -> bool:
        share = self._share
        return (
            bool(share.staying) and share.ready <= self._window // 4 and share.held < self._window
        )

    def _wants_more(self) -> bool:
        return (self._woken or self._share.has_more) and self._may_fetch()

    async def _fetch(self, *, everything: bool) -> None:
        """Read the logs that have more or, after a signal, all of them."""
        self._woken = False
        chosen = [log for log in self._share.staying if everything or log.more]
        limit = max(1, (self._window - self._share.held) // len(chosen))
        found: dict[int, list[Row]] = {log.partition_id: [] for log in chosen}
        for row in await self._store.fetch(
            [(log.partition_id, log.fetched, limit) for log in chosen]
        ):
            found[row.partition_id].append(row)
        failpoint("bus.after_fetch")
        fresh = [log for log in chosen if found[log.partition_id]]
        for log in fresh:
            # Stored before the delivery: a message that kills the process is not new afterwards.
            log.delivered = max(log.delivered, found[log.partition_id][-1].position + 1)
        await self._commit(fresh)
        self._share.feed([(log, found[log.partition_id]) for log in chosen], limit=limit)
        self._arrived.set()
        now = self._clock.monotonic()
        self._fetch_at = now if fresh else now + _GAP_SECONDS
        if everything:
            longer = min(self._pace.poll_seconds, 2 * self._idle)
            self._idle = _BUSY_SECONDS if fresh else longer
            self._poll_at = now + self._idle

    async def _commit(self, fresh: Sequence[Log]) -> None:
        """Store the watermarks that moved, and how far the *fresh* logs are delivered."""
        dirty = [log for log in self._share.logs.values() if log.watermark != log.committed]
        marks = {log: log.mark() for log in dict.fromkeys((*fresh, *dirty))}
        began, self._dirty_since = self._dirty_since, None
        try:
            failpoint("bus.before_positions")
            kept = await self._store.commit(self.member, list(marks.values()))
            failpoint("bus.after_positions")
        except BaseException:
            self._dirty_since = began
            raise
        for log, mark in marks.items():
            log.committed = mark[2]
        if not kept:
            await self._tick()

    async def _tick(self) -> None:
        self._shuffled = False
        await self._share.tick()
        if self._share.is_gone:
            # Whoever subscribes again makes it known again.
            _logger.error("group %s of %s was deleted", self.member.group, self.member.topic)
            self._stop.set()
        self._arrived.set()

    async def _hand_over(self) -> None:
        left = [log for log in self._share.logs.values() if log.leaving and not log.open]
        if left:
            await self._share.release(left)
            self._on_change(self)

    async def _retire(self) -> None:
        try:
            await self._share.release(list(self._share.logs.values()))
            await self._store.leave(self.member)
        except Exception as error:  # noqa: BLE001  the leases run out by themselves
            _logger.warning("the bus did not give back its logs: %s", describe(error))
        self._on_change(self)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
