"""The partitions that a projector owns, and how far it has read each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from semel.relay import Entry, Read

_LEAST_ROWS = 8


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
        "patient_until",
        "safe",
        "surveyed",
        "suspects",
        "taken_over",
    )

    def __init__(self, partition: int, epoch: int, *, suspects: int = 0) -> None:
        self.partition = partition
        self.epoch = epoch
        self.floor = 0
        self.safe = 0
        self.highest = 0
        self.last = 0
        self.known: dict[int, Entry] = {}
        self.more = True
        self.leaving = False
        #: Before its blocked keys are known nothing of it may be sent.
        self.surveyed = False
        #: How many of the first rows a dead owner may have been publishing.
        self.suspects = suspects
        self.taken_over = suspects > 0
        #: Until then rows wait that a process may have died of; set when the first is read.
        self.patient_until: float | None = None


class Lanes(dict[int, Lane]):
    """The owned partitions by number."""

    def add(self, partition: int, epoch: int, *, suspects: int = 0) -> None:
        """A partition became ours."""
        self[partition] = Lane(partition, epoch, suspects=suspects)

    def left(self) -> list[int]:
        """Return the partitions that we leave and that nothing in flight keeps any more."""
        return [lane.partition for lane in self.values() if lane.leaving and not lane.known]

    def knows(self, entry: Entry) -> bool:
        """Tell whether *entry* is the row that we hold, not one of a tenure that is over."""
        lane = self.get(entry.partition)
        return lane is not None and lane.known.get(entry.sequence) is entry

    def rewind(self) -> None:
        """Read from the beginning."""
        for lane in self.values():
            lane.floor = 0
            lane.more = True

    def choose(self, room: int, *, everything: bool) -> Sequence[Read]:
        """Choose the lanes to read next, each with a fair share of the room."""
        lanes = [
            lane
            for lane in self.values()
            if lane.surveyed and not lane.leaving and (everything or lane.more)
        ]
        if not lanes or room <= 0:
            return ()
        limit = max(_LEAST_ROWS, room // len(lanes))
        return [
            Read(lane.partition, lane.floor, limit, tuple(sorted(lane.known))) for lane in lanes
        ]

    def horizons(self, busy: Collection[int]) -> dict[int, int]:
        """Return up to where no writer can add rows any more, by partition."""
        return {
            lane.partition: lane.highest for lane in self.values() if lane.partition not in busy
        }

    def raise_floors(self, reads: Sequence[Read], horizons: Mapping[int, int]) -> None:
        """Skip finished rows from now on, up to horizons that the last fetch has passed."""
        for read in reads:
            lane = self.get(read.partition)
            horizon = horizons.get(read.partition)
            if lane is None or horizon is None or read.floor != lane.floor or not lane.surveyed:
                continue
            if lane.more and lane.last < horizon:
                continue
            lowest = min(lane.known, default=horizon + 1)
            lane.floor = max(lane.floor, min(lowest - 1, horizon))
            lane.safe = max(lane.safe, lane.floor)
