"""The relay: outbox rows to the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from semel.clock import SystemClock
from semel.envelope import check_tenant
from semel.errors import ConfigurationError, describe
from semel.observer import NullObserver
from semel.protocols import Clock, MessageBus, Observer
from semel.publishing import Publisher
from semel.relay import ALL_TENANTS, RelayStore
from semel.settings import OutboxProjectorConfig
from semel.tenure import Tenure
from semel.window import Window

_UNSET: Any = object()
_FLOOR_SECONDS = 0.1
_SCHEDULE_SECONDS = 0.05
_DATABASE_PAUSE = 1.0
_logger = logging.getLogger("semel.projector")


class OutboxProjector:
    """Publishes committed events: at least once, in order per key, none lost.

    Any number of projectors may run; each owns some partitions under a lease. *tenant_id* limits
    it to one tenant (default: the configuration's `default_tenant_id`); None means all of them.
    """

    def __init__(
        self,
        session_factory: Any = None,
        message_bus: MessageBus | None = None,
        tenant_id: str | None = _UNSET,
        *,
        config: OutboxProjectorConfig | None = None,
        store: RelayStore | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if message_bus is None:
            raise ConfigurationError("OutboxProjector needs a message_bus")
        if (session_factory is None) == (store is None):
            raise ConfigurationError("OutboxProjector needs a session_factory, or a store")
        self.config = config or OutboxProjectorConfig()
        chosen = self.config.default_tenant_id if tenant_id is _UNSET else tenant_id
        self.tenant_id = None if chosen is None else check_tenant(chosen)
        self._own_storage: Any = None
        if store is None:
            from semel.sqlalchemy.storage import SqlAlchemyStorage  # noqa: PLC0415  convenience

            self._own_storage = SqlAlchemyStorage(session_factory)
            store = self._own_storage.relay
        self._store: RelayStore = store
        self._bus = message_bus
        self._clock = clock or SystemClock()
        self._observer = observer or NullObserver()
        self._window = Window(max(1000, 4 * self.config.batch_size))
        self._tenure = Tenure(
            store,
            self._window,
            scope=self.tenant_id or ALL_TENANTS,
            lease_seconds=self.config.lease_seconds,
            suspects=self.config.batch_size * self.config.concurrency,
            clock=self._clock,
            observer=self._observer,
        )
        self._publisher = Publisher(
            self._bus,
            store,
            self._window,
            self._tenure,
            config=self.config,
            clock=self._clock,
            observer=self._observer,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._woken = True
        self._stopping = False
        self._running: asyncio.Task[Any] | None = None
        self._stopped = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._poll_at = 0.0
        self._idle = self.config.sleep_busy
        self._sweep_at = 0.0
        self._floor_at = 0.0
        self._schedule_at = 0.0
        self._database_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether this projector owns partitions and may publish."""
        return self._tenure.waiting_for is None and self._tenure.is_valid()

    @property
    def waiting_for(self) -> str | None:
        """Why it is not ready; None when it is."""
        return self._tenure.waiting_for

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that it owns."""
        return frozenset(self._window.lanes)

    @property
    def published(self) -> int:
        """How many events the broker has confirmed to this projector."""
        return self._publisher.published

    def wake(self) -> None:
        """Look for events now; may be called from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            inside = False
        if inside:
            self._set_woken()
        else:
            loop.call_soon_threadsafe(self._set_woken)

    def _set_woken(self) -> None:
        self._woken = True
        self._wake.set()

    async def run_forever(self) -> None:
        """Publish until `stop()` or cancellation; hands over what it holds."""
        self._begin()
        self._running = asyncio.current_task()
        unsubscribe = self._store.subscribe(self.wake)
        try:
            while not self._stopping:
                timeout = self._start_jobs()
                await self._wait(timeout)
        finally:
            unsubscribe()
            await asyncio.shield(self._finish())

    async def run_once(self) -> int:
        """Send what there is to send now, up to one window; return how many were confirmed."""
        self._begin()
        before = self._publisher.published
        if self._clock.monotonic() >= self._tenure.next_tick or not self._tenure.is_valid():
            await self._tenure.tick()
        self._woken = True
        self._schedule_at = 0.0
        await self._read()
        while True:
            for batch in self._publisher.next_batches():
                self._spawn(f"publish-{id(batch)}", batch)
            if not self._tasks and not self._publisher.unacknowledged:
                break
            if self._publisher.unacknowledged:
                await self._publisher.acknowledge()
            if self._tasks:
                await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                self._reap()
        await self._settle_lanes()
        return self._publisher.published - before

    async def stop(self) -> None:
        """Finish what is in flight, acknowledge it, give the partitions back."""
        self._stopping = True
        if self._running is not None and not self._running.done():
            self._wake.set()
            await self._stopped.wait()
        elif self._loop is not None:
            await self._finish()

    async def __aenter__(self) -> OutboxProjector:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise ConfigurationError(
                "this projector was used in another event loop: make one per loop"
            )
        if self._running is not None and not self._running.done():
            raise ConfigurationError("this projector is already running")
        self._loop = loop
        self._stopping = False
        self._stopped.clear()

    def _start_jobs(self) -> float:
        """Start whatever is due; return for how many seconds nothing will be."""
        now = self._clock.monotonic()
        if self._tenure.deadline and not self._tenure.is_valid():
            self._tenure.expire()
        if now >= self._database_at:
            if now >= self._tenure.next_tick or self._window.left():
                self._job("tick", self._tenure.tick)
            if self._publisher.unacknowledged:
                self._job("acknowledge", self._publisher.acknowledge)
            if self._must_read(now):
                self._job("read", self._read)
        if self._tenure.is_valid():
            for batch in self._publisher.next_batches():
                self._spawn(f"publish-{id(batch)}", batch)
        return self._idle_seconds(now)

    def _idle_seconds(self, now: float) -> float:
        window, publisher, tasks = self._window, self._publisher, self._tasks
        moments = [now + 60.0]
        if now < self._database_at:
            moments.append(self._database_at)
        else:
            if "tick" not in tasks:
                moments.append(self._tenure.next_tick)
            if window.lanes and "read" not in tasks:
                moments += [self._sweep_at, self._schedule_at]
                if window.room > 0 and publisher.wants_more:
                    moments.append(self._poll_at)
        due = window.next_due()
        if due is not None and publisher.has_slot and self._tenure.is_valid():
            moments.append(due)
        if publisher.resume_at is not None:
            moments.append(publisher.resume_at)
        return max(0.0, min(moments) - now)

    def _must_read(self, now: float) -> bool:
        window = self._window
        if not window.lanes or "read" in self._tasks:
            return False
        if window.to_park or window.overflowed or self._tenure.changed:
            return True
        if now >= self._sweep_at or now >= self._schedule_at:
            return True
        if window.room <= 0 or not self._publisher.wants_more:
            return False
        return self._woken or now >= self._poll_at or any(
            lane.more and not lane.leaving for lane in window.lanes.values()
        )

    async def _wait(self, timeout: float) -> None:
        waker = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait(
                [waker, *self._tasks.values()],
                timeout=timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waker.cancel()
        self._wake.clear()
        self._reap()

    def _reap(self) -> None:
        for name, task in list(self._tasks.items()):
            if not task.done():
                continue
            del self._tasks[name]
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._trouble(name, error)

    def _trouble(self, name: str, error: BaseException) -> None:
        """Leave a database that does not answer alone for a moment; nothing is lost meanwhile."""
        if not isinstance(error, Exception):
            raise error
        _logger.warning("%s failed: %s", name.partition("-")[0], describe(error))
        self._database_at = self._clock.monotonic() + _DATABASE_PAUSE
        if name == "read":
            self._window.end_fetch()
            self._woken = self._tenure.changed = True

    def _job(self, name: str, function: Any) -> None:
        if name not in self._tasks:
            self._spawn(name, function())

    def _spawn(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.ensure_future(coroutine)

    async def _read(self) -> None:
        """Everything that changes what is in memory happens here, one thing after the other."""
        now = self._clock.monotonic()
        await self._settle_lanes()
        sweeping = now >= self._sweep_at
        if sweeping or self._tenure.changed or self._window.overflowed:
            await self._sweep()
        if self._woken:
            self._schedule_at = min(self._schedule_at, now + _SCHEDULE_SECONDS)
        if now >= self._schedule_at:
            await self._promote()
        everything = self._woken or sweeping or now >= self._poll_at
        self._woken = False
        horizons: dict[int, int] = {}
        if now >= self._floor_at:
            self._floor_at = now + _FLOOR_SECONDS
            partitions = [lane.partition for lane in self._window.lanes.values() if lane.known]
            if partitions:
                before = self._window.horizons(())
                busy = set(await self._store.busy(partitions))
                horizons = {p: h for p, h in before.items() if p not in busy}
        reads = self._window.reads(everything=everything)
        if not reads or self._publisher.is_paused:
            self._window.end_fetch()
            self._poll_at = now + self.config.sleep_idle
            return
        entries = await self._store.fetch(reads, tenant_id=self.tenant_id)
        late = self._window.feed(reads, entries, self._clock.monotonic())
        if late and sweeping:
            self._observer.count("outbox_late_total", late)
        self._window.raise_floors(reads, horizons)
        if entries:
            self._idle = self.config.sleep_busy
        elif everything:
            self._idle = min(self.config.sleep_idle, self._idle * 2)
        if everything:
            self._poll_at = self._clock.monotonic() + self._idle

    async def _settle_lanes(self) -> None:
        window = self._window
        parked = window.to_park
        if not parked:
            return
        window.to_park = []
        try:
            await self._store.park(
                self._tenure.instance, self._tenure.epochs(), [e.sequence for e in parked]
            )
        except BaseException:
            window.to_park += parked
            raise
        for entry in parked:
            window.settle(entry)

    async def _sweep(self) -> None:
        window = self._window
        self._sweep_at = self._clock.monotonic() + self.config.sweep_seconds
        changed, self._tenure.changed = self._tenure.changed, False
        self._publisher.apply_pauses(self._tenure.pauses)
        partitions = list(window.lanes)
        survey = await self._store.survey(partitions)
        blocked = set(survey.blocked)
        unparked = await self._store.unpark(partitions, blocked=blocked)
        if changed or survey.revived or unparked or window.overflowed or blocked != window.blocked:
            window.blocked = blocked
            window.reset()
        else:
            window.rewind()
        for partition in partitions:
            if partition in window.lanes:
                window.lanes[partition].surveyed = True

    async def _promote(self) -> None:
        moved, wait = await self._store.promote(list(self._window.lanes))
        now = self._clock.monotonic()
        for partition, sequence in moved.items():
            lane = self._window.lanes.get(partition)
            if lane is not None:
                lane.floor = min(lane.floor, sequence - 1)
                lane.more = True
        self._schedule_at = (
            now + max(wait, _SCHEDULE_SECONDS) if wait is not None else now + 3600.0
        )

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self.config.publish_timeout_seconds):
                if self._tasks:
                    await asyncio.wait(self._tasks.values())
                self._reap()
                await self._publisher.acknowledge()
                await self._store.retire(self._tenure.instance)
        except Exception as error:  # noqa: BLE001  the leases run out by themselves
            _logger.warning("not stopped cleanly: %s", describe(error))
        finally:
            for task in self._tasks.values():
                task.cancel()
            self._window.drop_lanes(list(self._window.lanes))
            self._tenure.deadline = self._tenure.next_tick = 0.0
            self._tenure.waiting_for = "being started"
            if self._own_storage is not None:
                await self._own_storage.close()
            self._stopped.set()
