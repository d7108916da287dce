"""Figures, sampled once per process for any number of viewers, and kept for a day."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from semel.clock import SystemClock
from semel.errors import describe
from semel.hub import Hub
from semel.protocols import Clock
from semel.states import OutboxStats, OutboxStatus
from semel.tasks import unbroken

RECENT = 180
MINUTES = 24 * 60
MAX_TENANTS = 16
_PATIENCE_SECONDS = 20.0
_OUTSTANDING = (
    OutboxStatus.NEW,
    OutboxStatus.PUBLISHING,
    OutboxStatus.FAILED,
    OutboxStatus.DEAD,
)
_logger = logging.getLogger("semel.dashboard")


class Point(TypedDict):
    """The outbox at one moment; None: not known."""

    at: float
    written: float | None
    sent: float | None
    latency_p50: float | None
    latency_p95: float | None
    backlog: int
    failed: int
    dead: int
    oldest: float | None
    blocked_keys: int
    scheduled: int
    parked: int
    capped: list[str]
    projectors: int | None
    breakers: int | None
    pauses: int


@dataclass(slots=True)
class Series:
    """One tenant's figures, or everybody's: the last minutes exactly, a day by the minute."""

    recent: deque[Point] = field(default_factory=lambda: deque(maxlen=RECENT))
    minutes: deque[Point] = field(default_factory=lambda: deque(maxlen=MINUTES))
    viewers: int = 0
    position: int | None = None
    outstanding: int | None = None
    sampled_at: float = 0.0
    failed: str | None = None

    def add(self, point: Point) -> None:
        """Keep *point*."""
        self.recent.append(point)
        if not self.minutes or point["at"] - self.minutes[-1]["at"] >= 59.5:
            self.minutes.append(point)


class Live:
    """Samples every *seconds* while somebody looks, else every *idle_seconds*.

    One task, whatever the number of viewers. Beyond everybody's figures it samples the tenants
    that somebody looks at, at most sixteen.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        seconds: float = 5.0,
        idle_seconds: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self._hub = hub
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        self._clock = clock or SystemClock()
        self._series: OrderedDict[str | None, Series] = OrderedDict({None: Series()})
        self._task: asyncio.Task[None] | None = None
        self._tick = asyncio.Event()
        self._wanted = asyncio.Event()
        self.ended = False

    def stop(self) -> None:
        """Let viewers go: a server that stops waits for them."""
        self.ended = True
        self.touch()

    def start(self) -> None:
        """Begin, unless it runs already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="semel-dashboard")

    async def close(self) -> None:
        """Stop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def series(self, tenant: str | None) -> Series:
        """Return what is known of a tenant; of the one longest forgotten nothing is kept."""
        found = self._series.setdefault(tenant, Series())
        self._series.move_to_end(tenant)
        for other in list(self._series):
            if len(self._series) <= MAX_TENANTS + 1:
                break
            if other is not None and not self._series[other].viewers and other != tenant:
                del self._series[other]
        return found

    @contextmanager
    def watching(self, tenant: str | None) -> Iterator[Series]:
        """Count one viewer more while inside."""
        series = self.series(tenant)
        series.viewers += 1
        self.start()
        self._wanted.set()
        try:
            yield series
        finally:
            series.viewers -= 1

    async def wait(self, seconds: float) -> None:
        """Return after the next sample, or after *seconds*."""
        tick = self._tick
        try:
            async with asyncio.timeout(seconds):
                await tick.wait()
        except TimeoutError:
            return

    def touch(self) -> None:
        """Wake all viewers: something else than the figures has changed."""
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            await unbroken(self.sample())
            busy = any(series.viewers for series in self._series.values())
            if busy:
                await self._clock.sleep(self._seconds)
                continue
            try:
                async with asyncio.timeout(self._idle_seconds):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def sample(self) -> None:
        """Take one point of everybody's figures, and of each tenant that is looked at."""
        for tenant, series in list(self._series.items()):
            if tenant is not None and not series.viewers:
                continue
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    series.add(await self._point(tenant, series))
                series.failed = None
            except Exception as error:  # noqa: BLE001  the page says so, and it tries again
                if series.failed is None:
                    _logger.warning("the figures cannot be read: %s", describe(error))
                series.failed = describe(error)
        self.touch()

    async def _point(self, tenant: str | None, series: Series) -> Point:
        outbox = self._hub.storage.outbox
        stats = await outbox.stats(tenant_id=tenant)
        pulse = await outbox.pulse(after=series.position, tenant_id=tenant)
        pauses = await outbox.pauses()
        workers = None if tenant is not None else await self._hub.storage.workers.workers()
        now = self._clock.monotonic()
        written = sent = None
        elapsed = now - series.sampled_at
        outstanding = sum(stats.counts[status] for status in _OUTSTANDING)
        if series.position is not None and series.outstanding is not None and elapsed > 0:
            written = pulse.written / elapsed
            if not _is_capped(stats):
                # What was written and does not wait any more has been sent.
                gone = pulse.written - (outstanding - series.outstanding)
                sent = max(0.0, gone / elapsed)
        series.position, series.outstanding, series.sampled_at = pulse.position, outstanding, now
        alive = None if workers is None else [worker for worker in workers if worker.is_alive]
        return Point(
            at=round(self._clock.now().timestamp(), 3),
            written=written,
            sent=sent,
            latency_p50=pulse.latency_p50,
            latency_p95=pulse.latency_p95,
            backlog=stats.counts[OutboxStatus.NEW] + stats.counts[OutboxStatus.PUBLISHING],
            failed=stats.counts[OutboxStatus.FAILED],
            dead=stats.counts[OutboxStatus.DEAD],
            oldest=stats.oldest_unsent_seconds,
            blocked_keys=stats.blocked_keys,
            scheduled=stats.scheduled,
            parked=stats.parked,
            capped=sorted(stats.capped),
            projectors=None if alive is None else len(alive),
            breakers=None if alive is None else sum(len(worker.breakers) for worker in alive),
            pauses=sum(
                1 for pause in pauses if tenant is None or pause.tenant_id in (None, tenant)
            ),
        )


def _is_capped(stats: OutboxStats) -> bool:
    return any(status.value in stats.capped for status in _OUTSTANDING)
