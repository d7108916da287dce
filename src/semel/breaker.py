"""A destination in trouble is left alone for a while; no event is blamed for it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from semel.relay import Entry


@dataclass(slots=True)
class Breaker:
    """Open after trouble, for a pause that grows; half-open until a probe succeeds."""

    name: str
    base_seconds: float = 0.5
    max_seconds: float = 30.0
    trips: int = 0
    opened_at: float | None = None
    retry_at: float = 0.0
    error: str = ""
    #: The event that is tried when the pause is over, and whether that is being done.
    probe: Entry | None = None
    probing: bool = False
    alerted: bool = False

    def trip(self, now: float, error: str) -> None:
        """Open, or stay open for longer."""
        self.trips += 1
        if self.opened_at is None:
            self.opened_at = now
        ceiling = min(self.max_seconds, self.base_seconds * 2 ** min(self.trips - 1, 32))
        # Never at once, and not all projectors at the same moment.
        self.retry_at = now + ceiling * random.uniform(0.5, 1.0)  # noqa: S311  no secret
        self.error = error

    def close(self) -> None:
        """The trouble is over."""
        self.trips = 0
        self.opened_at = None
        self.retry_at = 0.0
        self.error = ""
        self.alerted = False

    @property
    def is_closed(self) -> bool:
        """Nothing is wrong."""
        return self.opened_at is None

    def is_open(self, now: float) -> bool:
        """Tell whether it is too early to try again."""
        return self.opened_at is not None and now < self.retry_at

    def open_seconds(self, now: float) -> float:
        """Return for how long there has been trouble."""
        return 0.0 if self.opened_at is None else now - self.opened_at
