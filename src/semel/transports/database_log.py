"""What a member of a group holds of one log: fetched, delivered, acked."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from semel.wire import WireMessage

if TYPE_CHECKING:
    from semel.sqlalchemy.bus_groups import Row, Seat


class Entry:
    """A message between its fetch and its ack."""

    __slots__ = ("attempts", "is_due", "is_open", "log", "position", "wire")

    def __init__(self, log: Log, position: int, wire: WireMessage, attempts: int) -> None:
        self.log = log
        self.position = position
        self.wire = wire
        self.attempts = attempts
        self.is_open = False  # in the hands of the consumer
        self.is_due = True  # False while a nack's delay lasts


_by_position = attrgetter("position")


class Log:
    """One log under one lease. The watermark never passes a message that is not acked."""

    def __init__(self, topic: str, seat: Seat) -> None:
        self.topic = topic
        self.partition_id = seat.partition_id
        self.epoch = seat.epoch
        self.committed = seat.position
        self.fetched = max(seat.position, seat.first)
        self.suspect = seat.delivered  # below it somebody may have been given messages before us
        self.delivered = seat.delivered  # what the table says
        self.handed = seat.delivered
        self.more = True
        self.leaving = False
        self.open = 0
        self.waiting: list[Entry] = []
        self._entries: dict[int, Entry] = {}

    @property
    def held(self) -> int:
        """How many messages are fetched and not acked."""
        return len(self._entries)

    @property
    def watermark(self) -> int:
        """Everything below this position is acked."""
        # Positions were added in ascending order, so the first is the lowest.
        return next(iter(self._entries), self.fetched)

    @property
    def ready(self) -> int:
        """How many messages may be delivered now."""
        if all(entry.is_due for entry in self.waiting):
            return len(self.waiting)
        late = {entry.wire.key for entry in self.waiting if not entry.is_due}
        return sum(
            entry.is_due and (entry.wire.key is None or entry.wire.key not in late)
            for entry in self.waiting
        )

    def mark(self, delivered: int | None = None) -> tuple[int, int, int, int]:
        """Return what to store about this log."""
        known = self.delivered if delivered is None else delivered
        return self.partition_id, self.epoch, self.watermark, known

    def feed(self, rows: Sequence[Row]) -> None:
        """Add messages that were fetched from `fetched` on."""
        for row in rows:
            wire = to_wire(self.topic, row)
            entry = Entry(self, row.position, wire, int(row.position < self.suspect))
            self._entries[row.position] = entry
            self.waiting.append(entry)
            self.fetched = row.position + 1

    def take(self) -> Entry | None:
        """Return the next message that may be delivered, keys in order."""
        held_keys: set[str] = set()
        for index, entry in enumerate(self.waiting):
            key = entry.wire.key
            if key is not None and key in held_keys:
                continue
            if entry.is_due:
                del self.waiting[index]
                entry.is_open = True
                entry.attempts += 1
                self.open += 1
                self.handed = max(self.handed, entry.position + 1)
                return entry
            if key is not None:
                held_keys.add(key)
        return None

    def ack(self, entry: Entry) -> None:
        """Forget *entry* for good."""
        entry.is_open = False
        self.open -= 1
        del self._entries[entry.position]

    def put_back(self, entry: Entry, *, due: bool) -> None:
        """Deliver *entry* again, before what follows of its key."""
        entry.is_open = False
        entry.is_due = due
        self.open -= 1
        insort(self.waiting, entry, key=_by_position)


def to_wire(topic: str, row: Row) -> WireMessage:
    """Return the message of a row as it was sent."""
    return WireMessage(topic, row.message_key, _headers(row.headers), row.body)


def _headers(text: str) -> Mapping[str, str]:
    # Rows that others wrote may hold anything: the consumer parks what it cannot decode.
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}
