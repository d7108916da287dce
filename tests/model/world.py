"""The outbox in the model: what there is, and how a row changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.rows import MOVES, NEW

NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """How large the world is, what goes wrong in it, and which bugs it has."""

    events: str = "abx"
    keys: str = "kkj"
    projectors: int = 2
    takeovers: int = 3
    crashes: int = 0
    unknowns: int = 0
    aborts: bool = False
    fails: bool = False
    dead: str | None = None  # what a DEAD event does to its key: block or skip
    marks: bool = False  # PUBLISHING is written, some time after the attempt began
    floor: bool = False
    keep_sent: bool = True
    # Bugs
    without_lock: bool = False
    floor_by_time: bool = False
    late_horizon: bool = False
    reused_numbers: bool = False
    ghosts: bool = False
    filtered_fetch: bool = False
    early_skip: bool = False
    read_ahead: bool = False
    hasty_owner: bool = False
    forgetful_survey: bool = False
    unfenced_marks: bool = False
    early_sent: bool = False
    unknown_is_sent: bool = False
    late_mark: bool = False
    eternal_lease: bool = False
    slow_clock: bool = False  # its own clock does not tell a projector that its lease ran out
    hasty_cleanup: bool = False

    def key(self, event: str) -> str:
        """Return the key of an event."""
        return self.keys[self.events.index(event)]


class Row(NamedTuple):
    """A row; `parked` keeps it out of fetches."""

    number: int
    event: str
    visible: bool = False
    status: str = NEW
    parked: bool = False


class Projector(NamedTuple):
    """What a projector remembers; `results` are not in the table yet."""

    epoch: int = 0
    floor: int = 0
    highest: int = 0
    horizon: tuple[str, int] | None = None
    queue: tuple[tuple[int, str], ...] = ()
    flight: tuple[tuple[int, str], ...] = ()  # on the way to the broker
    results: tuple[tuple[int, str, str], ...] = ()
    attempts: frozenset[int] = frozenset()  # PUBLISHING is to be written for these
    surveyed: bool = False
    survey: frozenset[str] | None = None  # the blocked keys, as they were read
    blocked: frozenset[str] = frozenset()


class State(NamedTuple):
    """Everything; `fault` is a move that must not happen."""

    rows: tuple[Row, ...]
    number: int
    locks: tuple[tuple[str, int], ...]
    writers: tuple[int, ...]
    commits: str
    owner: int
    epoch: int
    projectors: tuple[Projector, ...]
    broker: str = ""
    skipped: str = ""
    crashes: int = 0
    unknowns: int = 0
    rejections: int = 0
    requeues: int = 0
    fault: str | None = None

    def visible(self) -> list[Row]:
        """Return the committed rows."""
        return [row for row in self.rows if row.visible]

    def move(self, number: int, status: str, *, parked: bool = False) -> State:
        """Change the status of a row; what the automaton does not know is a fault."""
        rows: list[Row] = []
        fault = self.fault
        for row in self.rows:
            if row.number != number or not row.visible:
                rows.append(row)
                continue
            if (row.status, status) not in MOVES:
                fault = f"{row.event} goes from {row.status} to {status}"
            rows.append(row._replace(status=status, parked=parked))
        return self._replace(rows=tuple(rows), fault=fault)
