"""The one place where time is read."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the wall clock in UTC: for display and `occurred_at`, never for leases."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back and go on while the machine is suspended."""
        # time.monotonic() stops in suspend: a lease would seem to be alive after waking up.
        return time.clock_gettime(_SUSPEND_AWARE)

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        await asyncio.sleep(seconds)


_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 1))
