"""The relay: outbox rows to the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from semel.clock import SystemClock
from semel.envelope import check_tenant
from semel.errors import ConfigurationError, describe
from semel.failpoints import failpoint
from semel.observer import NullObserver
from semel.protocols import Clock, MessageBus, Observer
from semel.publishing import Publisher
from semel.reading import Intake
from semel.relay import ALL_TENANTS, RelayStore
from semel.reporting import Report
from semel.settings import OutboxProjectorConfig
from semel.tenure import Tenure
from semel.window import Window

_UNSET: Any = object()
_DATABASE_PAUSE = 1.0
_GRACE_SECONDS = 5.0
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
        self._window = Window(
            # While as much is in flight as may be, as much is at hand.
            max(1000, 2 * self.config.batch_size * self.config.concurrency),
            grace_seconds=min(self.config.lease_seconds, _GRACE_SECONDS),
        )
        self._tenure = Tenure(
            store,
            self._window,
            scope=self.tenant_id or ALL_TENANTS,
            lease_seconds=self.config.lease_seconds,
            suspects=self.config.batch_size * self.config.concurrency,
            clock=self._clock,
            observer=self._observer,
        )
        self._wake = asyncio.Event()
        self._publisher = Publisher(
            self._bus,
            store,
            self._window,
            self._tenure,
            config=self.config,
            clock=self._clock,
            observer=self._observer,
        )
        self._report = Report(self._publisher, self._tenure, self._clock)
        self._intake = Intake(
            store,
            self._window,
            self._tenure,
            self._publisher,
            tenant_id=self.tenant_id,
            config=self.config,
            clock=self._clock,
            observer=self._observer,
            tell=self._wake.set,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called = False
        self._stopping = False
        self._running: asyncio.Task[Any] | None = None
        self._stopped = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._database_at = 0.0
        self._publish_at = 0.0
        self._turned_at = 0.0

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
    def seconds_since_turn(self) -> float | None:
        """How long ago its loop came round, once a minute at least; None: it does not run."""
        if self._running is None or self._running.done():
            return None
        return self._clock.monotonic() - self._turned_at

    @property
    def published(self) -> int:
        """How many events the broker has confirmed to this projector."""
        return self._publisher.published

    def has_noticed(self, operations: int) -> bool:
        """Tell whether it knows of so many interventions, and no parked row will move by itself."""
        return self._intake.noticed == operations and not self._intake.is_catching_up

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
        self._intake.woken = self._called = True
        self._wake.set()

    async def run_forever(self) -> None:
        """Publish until `stop()` or cancellation; hands over what it holds."""
        if self._stopping:
            return  # stopped before it began
        self._begin()
        self._running = asyncio.current_task()
        unsubscribe = self._store.subscribe(self.wake)
        try:
            while not self._stopping:
                await self._wait(self._start_jobs())
        finally:
            unsubscribe()
            await asyncio.shield(self._finish())

    async def run_once(self) -> int:
        """Send what there is to send now, up to one window; return how many were confirmed."""
        self._begin()
        before = self._publisher.published
        if self._clock.monotonic() >= self._tenure.next_tick or not self._tenure.is_valid():
            await self._tick()
        self._intake.look_again()
        await self._intake.read()
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
        await self._intake.park()
        return self._publisher.published - before

    async def stop(self) -> None:
        """Finish what is in flight, acknowledge it, give the partitions back.

        A projector that has not begun yet does not begin.
        """
        self._stopping = True
        if self._running is not None and not self._running.done():
            self._wake.set()
            await self._stopped.wait()
        elif self._loop is not None:
            await self._finish()

    async def __aenter__(self) -> Self:
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
        self._tenure.enter()
        self._stopped.clear()

    def _start_jobs(self) -> float:
        """Start whatever is due; return for how many seconds nothing will be."""
        now = self._turned_at = self._clock.monotonic()
        tenure, tasks = self._tenure, self._tasks
        if tenure.deadline and not tenure.is_valid():
            tenure.expire()
        if now >= self._database_at:
            if now >= tenure.next_tick or self._window.lanes.left():
                self._job("tick", self._tick)
            if self._publisher.unacknowledged:
                self._job("acknowledge", self._publisher.acknowledge)
            if "read" not in tasks and now >= self._intake.next_read(now):
                self._job("read", self._intake.read)
        if tenure.is_valid() and now >= self._publish_at:
            for batch in self._publisher.next_batches():
                self._spawn(f"publish-{id(batch)}", batch)
        return max(0.0, self._next_moment(now) - now)

    async def _tick(self) -> None:
        await self._tenure.tick(self._report())

    def _next_moment(self, now: float) -> float:
        """Return when something will be due, unless a task ends or a commit wakes us before."""
        moments = [now + 60.0]
        if now < self._database_at:
            moments.append(self._database_at)
        else:
            if "tick" not in self._tasks:
                moments.append(self._tenure.next_tick)
            if "read" not in self._tasks:
                moments.append(self._intake.next_read(now))
        if now < self._publish_at:
            moments.append(self._publish_at)
        elif self._tenure.is_valid():
            due = self._window.next_due()
            if due is not None and self._publisher.has_slot:
                moments.append(due)
            resume = self._publisher.destinations.resume_at
            if resume is not None:
                moments.append(resume)
        return min(moments)

    async def _wait(self, seconds: float) -> None:
        """Return when a job ends or a commit wakes us, after *seconds* at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
        if self._called:
            self._called = False
            self._observer.count("outbox_wakeups_total")
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
        kind = name.partition("-")[0]
        _logger.warning("%s failed: %s", kind, describe(error))
        self._database_at = self._clock.monotonic() + _DATABASE_PAUSE
        if kind == "publish":
            self._publish_at = self._database_at

    def _job(self, name: str, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._tasks:
            self._spawn(name, function())

    def _spawn(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.ensure_future(coroutine)
        task.add_done_callback(lambda _: self._wake.set())

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self.config.publish_timeout_seconds):
                if self._tasks:
                    await asyncio.wait(self._tasks.values())
                self._reap()
                await self._publisher.close()
                await self._publisher.acknowledge()
                failpoint("relay.before_retire")
                await self._store.retire(self._tenure.instance)
                failpoint("relay.after_retire")
        except Exception as error:  # noqa: BLE001  the leases run out by themselves
            _logger.warning("not stopped cleanly: %s", describe(error))
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()
            self._window.drop_lanes(list(self._window.lanes))
            self._tenure.leave()
            if self._own_storage is not None:
                await self._own_storage.close()
            self._stopping = False
            self._stopped.set()
