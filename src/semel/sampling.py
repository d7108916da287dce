"""Gauges that only the database or the broker knows, read once in a while and never by a scrape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from semel.clock import SystemClock
from semel.consumer import EventConsumer
from semel.errors import ConfigurationError, describe
from semel.protocols import Clock, Observer, OutboxStore
from semel.states import OutboxStatus
from semel.tasks import unbroken

_GAUGES = {
    OutboxStatus.NEW: "outbox_backlog",
    OutboxStatus.FAILED: "outbox_failed",
    OutboxStatus.DEAD: "outbox_dead",
}
_PATIENCE_SECONDS = 10.0
_logger = logging.getLogger("semel.metrics")


class Sampler:
    """Tells *observer* every *seconds* how the outbox and the consumers stand.

    One per process is enough; every process that runs a projector has one, so that the figures
    are there even while no projector owns anything. They are the same figures: take their maximum.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        outbox: OutboxStore | None = None,
        consumers: Callable[[], Iterable[EventConsumer]] = tuple,
        seconds: float = 15.0,
        clock: Clock | None = None,
    ) -> None:
        if not seconds > 0:
            raise ConfigurationError("a sampler's seconds must be more than 0")
        self._observer = observer
        self._outbox = outbox
        self._consumers = consumers
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._failing: set[str] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sample while inside."""
        task = asyncio.create_task(self.run_forever(), name="semel-sampler")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run_forever(self) -> None:
        """Sample until cancelled; what does not answer is asked again the next time."""
        while True:
            await unbroken(self.sample())
            await self._clock.sleep(self._seconds)

    async def sample(self) -> None:
        """Read everything once."""
        if self._outbox is not None:
            await self._attempt("the outbox", self._sample_outbox(self._outbox))
        for consumer in list(self._consumers()):
            name = f"consumer {consumer.name} of {consumer.topic}"
            await self._attempt(name, self._sample_consumer(consumer))

    async def _attempt(self, what: str, reading: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await reading
        except Exception as error:  # noqa: BLE001  figures that are missing stop nothing
            if what not in self._failing:
                _logger.warning("%s cannot be measured: %s", what, describe(error))
            self._failing.add(what)
        else:
            self._failing.discard(what)

    async def _sample_outbox(self, outbox: OutboxStore) -> None:
        stats = await outbox.stats()
        pauses = await outbox.pauses()
        gauge = self._observer.gauge
        for status, name in _GAUGES.items():
            gauge(name, stats.counts[status])
        gauge("outbox_blocked_keys", stats.blocked_keys)
        gauge("outbox_parked", stats.parked)
        gauge("outbox_scheduled", stats.scheduled)
        gauge("outbox_oldest_unsent_age_seconds", stats.oldest_unsent_seconds or 0.0)
        gauge("outbox_pauses", len(pauses))
        gauge("outbox_sampled_timestamp_seconds", self._clock.now().timestamp())

    async def _sample_consumer(self, consumer: EventConsumer) -> None:
        labels = {"consumer_name": consumer.name, "topic": consumer.topic}
        gauge = self._observer.gauge
        gauge("consumer_connected", float(await consumer.is_connected()), **labels)
        gauge("consumer_in_flight", consumer.in_flight, **labels)
        oldest = consumer.oldest_running_seconds() or 0.0
        gauge("consumer_oldest_running_seconds", oldest, **labels)
        lag = await consumer.lag()
        if lag is not None:
            gauge("consumer_lag_messages", lag, **labels)
