"""Read the table into the window."""

from __future__ import annotations

import math
from collections.abc import Callable

from semel.failpoints import failpoint
from semel.protocols import Clock, Observer
from semel.publishing import Publisher
from semel.relay import RelayStore
from semel.settings import OutboxProjectorConfig
from semel.tenure import Tenure
from semel.window import Window

_FLOOR_SECONDS = 0.1
# A few rows are passed over sooner than the database is asked whether their floor may rise.
_FLOOR_ROWS, _FLOOR_PATIENCE = 250, 1.0
_SCHEDULE_SECONDS = 0.05
_LONG = 3600.0


class Intake:
    """Everything that changes what is in memory happens in `read`, one thing after the other.

    It calls *tell* when there is something to publish before it is through.
    """

    def __init__(
        self,
        store: RelayStore,
        window: Window,
        tenure: Tenure,
        publisher: Publisher,
        *,
        tenant_id: str | None,
        config: OutboxProjectorConfig,
        clock: Clock,
        observer: Observer,
        tell: Callable[[], None],
    ) -> None:
        self._store = store
        self._window = window
        self._tell = tell
        self._tenure = tenure
        self._destinations = publisher.destinations
        self._tenant_id = tenant_id
        self._config = config
        self._clock = clock
        self._observer = observer
        self._idle = config.sleep_busy
        self._poll_at = 0.0
        self._sweep_at = 0.0
        self._floor_at = -math.inf
        self._fed = 0
        self._promoted_at = 0.0
        self._schedule_at = 0.0
        #: There may be new rows: look at all lanes.
        self.woken = True
        #: So many interventions of operators have been taken into account.
        self.noticed: int | None = None
        self._sweeping = False

    @property
    def is_catching_up(self) -> bool:
        """Whether rows are parked that will be read again without anybody's doing."""
        return (
            self._sweeping
            or self._tenure.changed
            or self._window.is_overflowing
            or bool(self._destinations.in_trouble)
        )

    def next_read(self, now: float) -> float:
        """Return when to call `read`; what has passed is now."""
        window = self._window
        if not window.lanes:
            return now + _LONG
        if window.to_park or window.overflowed or self._tenure.changed:
            return now
        moment = min(self._sweep_at, self._schedule_at)
        if window.room > 0 and self._destinations.accept:
            more = window.is_hungry and any(
                lane.more and not lane.leaving for lane in window.lanes.values()
            )
            moment = now if self.woken or more else min(moment, self._poll_at)
        return moment

    async def read(self) -> None:
        """Park, sweep, promote and fetch: whatever is due."""
        try:
            await self._read()
        except BaseException:
            self._window.end_fetch()
            self.woken = self._tenure.changed = True
            raise

    def look_again(self) -> None:
        """Make the next `read` look at everything that is due."""
        self.woken = True
        self._schedule_at = 0.0

    async def park(self) -> None:
        """Move rows out of the hot lane that wait behind a blocked key or a pause."""
        window = self._window
        parked, window.to_park = window.to_park, []
        if not parked:
            return
        try:
            await self._store.park(
                self._tenure.instance, self._tenure.epochs(), [e.sequence for e in parked]
            )
        except BaseException:
            window.to_park += parked
            raise
        failpoint("relay.after_park")
        for entry in parked:
            window.settle(entry)

    async def _read(self) -> None:
        window, now = self._window, self._clock.monotonic()
        await self.park()
        sweeping = now >= self._sweep_at
        if sweeping or self._tenure.changed or window.overflowed:
            self._sweeping = True
            await self._sweep()
            self._sweeping = False
        everything = self.woken or sweeping or now >= self._poll_at
        if everything:
            # Somebody whom we cannot hear may have added a scheduled row.
            self._schedule_at = min(self._schedule_at, self._promoted_at + _SCHEDULE_SECONDS)
        if window.room > 0:
            self.woken = False
        await self._fetch(now, everything=everything, sweeping=sweeping)
        if now >= self._schedule_at:
            self._tell()  # what was just committed shall not wait
            if await self._promote():
                await self._fetch(now, everything=False, sweeping=False)

    async def _fetch(self, now: float, *, everything: bool, sweeping: bool) -> None:
        window = self._window
        horizons = await self._horizons(now)
        reads = window.reads(everything=everything)
        if not reads or self._destinations.is_paused:
            window.end_fetch()
            self._poll_at = now + self._config.sleep_idle
            return
        entries = await self._store.fetch(reads, tenant_id=self._tenant_id)
        failpoint("relay.after_fetch")
        late = window.feed(reads, entries, self._clock.monotonic())
        if late and sweeping:
            self._observer.count("outbox_late_total", late)
        window.lanes.raise_floors(reads, horizons)
        failpoint("relay.after_floor")
        self._fed += len(entries)
        if entries:
            self._idle = self._config.sleep_busy
        elif everything:
            self._idle = min(self._config.sleep_idle, self._idle * 2)
        if everything:
            self._poll_at = self._clock.monotonic() + self._idle

    async def _horizons(self, now: float) -> dict[int, int]:
        """Return up to where floors may rise; must be asked for before the fetch."""
        lanes = self._window.lanes
        partitions = [lane.partition for lane in lanes.values() if lane.known]
        wait = _FLOOR_SECONDS if self._fed >= _FLOOR_ROWS else _FLOOR_PATIENCE
        if now < self._floor_at + wait or not partitions:
            return {}
        self._floor_at, self._fed = now, 0
        before = lanes.horizons(())
        busy = set(await self._store.busy(partitions))
        return {partition: h for partition, h in before.items() if partition not in busy}

    async def _sweep(self) -> None:
        """Learn which keys are blocked, bring parked rows back, read from the beginning."""
        window = self._window
        self._sweep_at = self._clock.monotonic() + self._config.sweep_seconds
        changed, self._tenure.changed = self._tenure.changed, False
        operations = self._tenure.operations
        self._destinations.apply_pauses(self._tenure.pauses)
        lanes = dict(window.lanes)
        window.holds.begin_survey()
        survey = await self._store.survey(list(lanes))
        blocked = window.holds.found(survey.blocked)
        afresh = changed or window.overflowed or survey.revived or blocked != window.holds.blocked
        if afresh or not window.has_parked:
            # What a pause or an open breaker holds back stays where it is until that ends.
            afresh = bool(
                await self._store.unpark(list(lanes), blocked=blocked, tenant_id=self._tenant_id)
                or afresh
            )
            failpoint("relay.after_unpark")
        if afresh:
            window.holds.blocked = window.holds.found(blocked)
            window.reset()
        else:
            window.lanes.rewind()
        for partition, lane in lanes.items():
            if window.lanes.get(partition) is lane:
                lane.surveyed = True
        if changed:
            self._schedule_at = 0.0
        self.noticed = operations

    async def _promote(self) -> bool:
        """Make scheduled rows hot that are due; tell whether there were any."""
        lanes = self._window.lanes
        moved, wait = await self._store.promote(list(lanes), tenant_id=self._tenant_id)
        failpoint("relay.after_promote")
        now = self._promoted_at = self._clock.monotonic()
        for partition, sequence in moved.items():
            lane = lanes.get(partition)
            if lane is not None:
                lane.floor = min(lane.floor, sequence - 1)
                lane.more = True
        self._schedule_at = now + (_LONG if wait is None else max(wait, _SCHEDULE_SECONDS))
        return bool(moved)
