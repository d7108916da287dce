"""What a projector tells others with each heartbeat."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from semel.breaker import Breaker
from semel.protocols import Clock
from semel.publishing import Publisher
from semel.tenure import Tenure

# The row is written every two seconds: it stays small however many topics are in trouble.
_BREAKERS = 20
_ERROR = 200


class Report:
    """How much it has sent, what it waits for, which destinations it leaves alone."""

    def __init__(self, publisher: Publisher, tenure: Tenure, clock: Clock) -> None:
        self._publisher = publisher
        self._tenure = tenure
        self._clock = clock
        self._before = (clock.monotonic(), 0)

    def __call__(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        now, published = self._clock.monotonic(), self._publisher.published
        moment, already = self._before
        self._before = (now, published)
        rate = (published - already) / (now - moment) if now > moment else 0.0
        troubled = self._publisher.destinations.in_trouble
        return {
            "published": published,
            "published_per_second": round(rate, 1),
            "failed": self._publisher.failed,
            "waiting_for": self._tenure.waiting_for,
            "breakers": [self._breaker(breaker, now) for breaker in troubled[:_BREAKERS]],
        }

    def _breaker(self, breaker: Breaker, now: float) -> dict[str, Any]:
        broker = breaker is self._publisher.destinations.broker
        since = self._clock.now() - timedelta(seconds=breaker.open_seconds(now))
        return {
            "topic": None if broker else breaker.name,
            "since": since.isoformat(timespec="seconds"),
            "trips": breaker.trips,
            "error": breaker.error[:_ERROR],
        }
