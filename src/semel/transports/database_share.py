"""Which logs of a topic a member of a group reads, and until when."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.clock import SystemClock
from semel.failpoints import failpoint
from semel.transports.database_log import Entry, Log

if TYPE_CHECKING:
    from semel.sqlalchemy.bus_groups import Member, Row, Seat, SqlAlchemyGroups

_HUNGRY_SECONDS = 0.25  # between heartbeats of a member that waits for its share
_logger = logging.getLogger("semel.bus")


class Share:
    """Keeps a member's leases: renews, claims its fair share, gives up the surplus.

    The database's clock decides who owns a log; our own, read before the renewal was sent,
    decides when we must stop delivering because a lease may have run out.

    Of all logs together: *ready* to be delivered, *open* at the consumer, *held* in memory.
    """

    def __init__(self, store: SqlAlchemyGroups, member: Member) -> None:
        self.member = member
        self.logs: dict[int, Log] = {}
        self.staying: list[Log] = []  # without those that we give up
        self.is_gone = False
        self.next_tick = 0.0
        self.ready = self.open = self.held = 0
        self.has_more = False
        self._turn = 0
        self._store = store
        self._clock = SystemClock()
        self._deadline = 0.0

    def is_valid(self) -> bool:
        """Tell whether we may deliver now."""
        return self._clock.monotonic() < self._deadline

    def take(self) -> Entry | None:
        """Return the next message to deliver, from each log in turn."""
        count = len(self.staying)
        for step in range(count) if self.ready else ():
            turn = (self._turn + step) % count
            entry = self.staying[turn].take()
            if entry is not None:
                self._turn = turn + 1
                self.ready -= 1
                self.open += 1
                return entry
        return None

    def ack(self, entry: Entry) -> None:
        """Forget *entry* for good."""
        entry.log.ack(entry)
        self.open -= 1
        self.held -= 1

    def put_back(self, entry: Entry, *, due: bool) -> None:
        """Deliver *entry* again."""
        entry.log.put_back(entry, due=due)
        self._count()

    def revive(self, entry: Entry) -> None:
        """The delay of *entry* is over."""
        entry.is_due = True
        self._count()

    def feed(self, found: Sequence[tuple[Log, Sequence[Row]]], *, limit: int) -> None:
        """Add what was fetched of logs, up to *limit* of each, if they are still ours."""
        for log, rows in found:
            log.more = len(rows) == limit
            if self.logs.get(log.partition_id) is log:
                log.feed(rows)
        self._count()

    async def tick(self) -> None:
        """Renew, see who is there, claim our share or begin to give up the surplus."""
        began = self._clock.monotonic()
        seats, members = await self._store.heartbeat(self.member)
        failpoint("bus.after_renewal")
        self._deadline = began + self.member.lease_seconds
        self.is_gone = not seats
        self._adopt(seats)
        smaller, larger = divmod(len(seats), len(members))
        size = smaller + (members.index(self.member.id) < larger)
        surplus = len(self.staying) - size
        if surplus > 0:
            for log in sorted(self.staying, key=lambda log: (log.open, log.held))[:surplus]:
                log.leaving = True
            self._count()
        elif surplus < 0:
            await self._grow(seats, -surplus)
        pause = min(self.member.lease_seconds / 3, 2.0)
        if len(self.staying) < size:
            pause = min(pause, _HUNGRY_SECONDS)
        self.next_tick = began + pause

    async def release(self, logs: Sequence[Log]) -> None:
        """Give logs back, with what is acked of them."""
        marks = [log.mark(delivered=max(log.suspect, log.handed)) for log in logs]
        await self._store.commit(self.member, marks, release=True)
        failpoint("bus.after_release")
        for log in logs:
            del self.logs[log.partition_id]
        self._count()

    async def _grow(self, seats: Sequence[Seat], wanted: int) -> None:
        for log in self.logs.values():
            if log.leaving and wanted:
                log.leaving, wanted = False, wanted - 1
        self._count()
        # At random: two that start together shall not fight for the same ones.
        free = [seat.partition_id for seat in seats if seat.is_free]
        chosen = random.sample(free, min(wanted, len(free)))
        if chosen:
            claimed = await self._store.claim(self.member, chosen)
            failpoint("bus.after_claim")
            self._adopt(claimed)

    def _adopt(self, seats: Sequence[Seat]) -> None:
        """Drop what others have taken over, begin with what is ours now."""
        mine = {seat.partition_id: seat for seat in seats if seat.owner == self.member.id}
        for number, log in list(self.logs.items()):
            if number not in mine or mine[number].epoch != log.epoch:
                _logger.warning("another member took over log %d of %s", number, log.topic)
                del self.logs[number]
        for number, seat in mine.items():
            if number in self.logs:
                continue
            if seat.position < seat.first:
                _logger.warning(
                    "group %s missed %d messages of %s: it was away for longer than they are kept",
                    self.member.group,
                    seat.first - seat.position,
                    self.member.topic,
                )
            self.logs[number] = Log(self.member.topic, seat)
        self._count()

    def _count(self) -> None:
        logs = self.logs.values()
        self.staying = [log for log in logs if not log.leaving]
        self.ready = sum(log.ready for log in self.staying)
        self.open = sum(log.open for log in logs)
        self.held = sum(log.held for log in logs)
        self.has_more = any(log.more for log in self.staying)
