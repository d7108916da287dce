"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count


class FakeClock:
    """A `Clock` whose sleepers wake when it was moved far enough.

    >>> clock = FakeClock()
    >>> before = clock.now()
    >>> clock.advance(60)
    >>> (clock.now() - before).total_seconds()
    60.0
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or datetime(2030, 1, 1, tzinfo=UTC)
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> datetime:
        """Return the wall clock."""
        return self._now + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds that the clock was moved."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was moved that far."""
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._numbers), future))
        await future

    def advance(self, seconds: float) -> None:
        """Move the clock; sleepers that are due wake at the next turn of the loop."""
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
