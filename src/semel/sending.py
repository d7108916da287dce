"""One call of the broker: what is written down before it, and what its failure means."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeGuard

from semel.charging import Charges
from semel.errors import PublishError
from semel.failpoints import failpoint
from semel.observer import Operation, system_of
from semel.protocols import MessageBus, Observer
from semel.relay import Entry, RelayStore
from semel.states import OutboxStatus
from semel.tenure import Tenure
from semel.window import Window

_VISIBLE_SECONDS = 1.0
_PUBLISHING = OutboxStatus.PUBLISHING.value


def is_trouble(result: PublishError | None) -> TypeGuard[PublishError]:
    """Tell outcomes for which an event is not to blame."""
    return result is not None and result.kind in ("destination", "unknown")


class LeaseExpiredError(Exception):
    """Our own clock says that somebody else may own the partitions."""


class DestinationError(Exception):
    """Something escaped the bus; the outcomes are unknown."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Sender:
    """Gives a batch to the broker."""

    def __init__(
        self,
        bus: MessageBus,
        store: RelayStore,
        window: Window,
        tenure: Tenure,
        charges: Charges,
        *,
        timeout_seconds: float,
        observer: Observer,
    ) -> None:
        self._bus = bus
        self._store = store
        self._window = window
        self._tenure = tenure
        self._charges = charges
        self._timeout = timeout_seconds
        self._observer = observer
        self._labels = {"transport": system_of(bus)}
        self._marks: set[asyncio.Task[None]] = set()

    async def ping(self) -> None:
        """Ask whether the broker answers."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._bus.ping()
        except Exception as error:
            raise DestinationError(error) from error

    async def send(self, batch: Sequence[Entry]) -> Sequence[PublishError | None]:
        """Return one outcome per event; `DestinationError` if none is known."""
        counted = await self._prepare(batch)
        try:
            results = await self._call(batch)
        except DestinationError as error:
            # The process is alive, so the event was not what others died of.
            for entry in counted:
                await self._charges.survived(entry, error.cause)
            raise
        for entry in counted:
            result = results[batch.index(entry)]
            if is_trouble(result):
                await self._charges.survived(entry, result)
        return results

    async def _prepare(self, batch: Sequence[Entry]) -> list[Entry]:
        """Make attempts visible that must survive a crash; return those that were counted."""
        marked: list[Entry] = []
        counted: list[Entry] = []
        lanes = self._window.lanes
        for entry in batch:
            lane = lanes.get(entry.partition)
            suspect = lane is not None and lane.suspects > 0
            if lane is not None and suspect:
                lane.suspects -= 1
            if entry.status == _PUBLISHING:
                counted.append(entry)
            elif suspect or entry.attempts:
                marked.append(entry)
        instance = self._tenure.instance
        if marked:
            await self._store.begin(instance, marked)
        for entry in counted:
            delay = self._charges.crash_delay(entry)
            await self._store.begin(instance, [entry], count=True, retry_in=delay)
        if marked or counted:
            failpoint("relay.after_begin")
        return counted

    async def _call(self, batch: Sequence[Entry]) -> Sequence[PublishError | None]:
        if not self._tenure.is_valid():
            raise LeaseExpiredError
        messages = [entry.envelope for entry in batch]
        marker = asyncio.get_running_loop().call_later(_VISIBLE_SECONDS, self._show, batch)
        try:
            operation = Operation(name="publish", messages=messages, labels=self._labels)
            with self._observer.observe(operation):
                async with asyncio.timeout(self._timeout):
                    failpoint("relay.before_publish")
                    results = await self._bus.publish_many(messages)
                    failpoint("relay.after_publish")
                operation.outcome = _check(results, len(batch))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled us: something inside the bus was.
            raise DestinationError(error) from error
        except Exception as error:
            raise DestinationError(error) from error
        finally:
            marker.cancel()
        return results

    def _show(self, batch: Sequence[Entry]) -> None:
        fresh = [entry for entry in batch if entry.status == OutboxStatus.NEW]
        if fresh:
            task = asyncio.ensure_future(self._store.begin(self._tenure.instance, fresh))
            self._marks.add(task)
            task.add_done_callback(self._shown)

    def _shown(self, task: asyncio.Task[None]) -> None:
        self._marks.discard(task)
        if not task.cancelled():
            task.exception()  # a mark for the eye only

    async def close(self) -> None:
        """Wait for marks that are being written."""
        if self._marks:
            await asyncio.wait(self._marks)


def _check(results: Sequence[PublishError | None], number: int) -> str:
    """Raise unless *results* are what the protocol says; return the first failure's kind, or ok."""
    if len(results) != number:
        raise RuntimeError(f"publish_many returned {len(results)} results for {number} messages")
    for result in results if any(results) else ():
        if result is not None and not isinstance(result, PublishError):
            raise TypeError(f"publish_many returned {type(result).__name__}, not PublishError")
    return next((result.kind for result in results if result is not None), "ok")
