"""Copies topics of a bus that keeps no log into the database's, where they can be read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta

from semel.clock import SystemClock
from semel.envelope import MessageEnvelope
from semel.errors import BusError, SemelError, describe
from semel.protocols import Delivery, MessageBus, Subscription
from semel.retry import RetryPolicy
from semel.wire import WireMessage, decode

_PREFETCH = 200
_TROUBLE = RetryPolicy(max_attempts=1, base_seconds=0.1, max_seconds=10.0)
_logger = logging.getLogger("semel.live")


class Mirror:
    """One group for all processes: each message is copied at least once, in order per key.

    Messages older than *max_age* are passed over, so that a new group does not repeat history.
    """

    def __init__(
        self, source: MessageBus, target: MessageBus, *, group: str, max_age: timedelta
    ) -> None:
        self._source = source
        self._target = target
        self._group = group
        self._max_age = max_age
        self._clock = SystemClock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, topics: Iterable[tuple[str, str]]) -> None:
        """Copy each topic to the one that is named beside it."""
        self._tasks = [
            asyncio.create_task(self._copy(topic, name), name=f"semel-mirror-{topic}")
            for topic, name in topics
        ]

    async def close(self) -> None:
        """End; what is not copied stays with the broker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _copy(self, topic: str, name: str) -> None:
        failures = 0
        while True:
            try:
                subscription = await self._source.subscribe(
                    topic, group=self._group, prefetch=_PREFETCH
                )
                try:
                    await self._follow(subscription, name)
                finally:
                    await subscription.close()
                failures = 0
            except Exception as error:  # noqa: BLE001  broker or database may come back
                failures += 1
                _logger.warning("cannot copy %s: %s", topic, describe(error))
            await asyncio.sleep(max(0.1, _TROUBLE.delay(max(1, failures))))

    async def _follow(self, subscription: Subscription, name: str) -> None:
        # Bounded by the prefetch: nothing is acked before it is written.
        queue: asyncio.Queue[Delivery | None] = asyncio.Queue()

        async def read() -> None:
            try:
                async for delivery in subscription:
                    queue.put_nowait(delivery)
            finally:
                queue.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while await self._write([await queue.get(), *_rest(queue)], name):
                pass
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _write(self, batch: list[Delivery | None], name: str) -> bool:
        deliveries = [delivery for delivery in batch if delivery is not None]
        copies = [self._copied(delivery.wire, name) for delivery in deliveries]
        for error in await self._target.publish_many([copy for copy in copies if copy]):
            if error is not None:
                raise BusError(f"the copy was refused: {describe(error)}")
        for delivery in deliveries:
            await delivery.ack()
        return None not in batch

    def _copied(self, wire: WireMessage, name: str) -> MessageEnvelope | None:
        try:
            message = decode(WireMessage(name, wire.key, wire.headers, wire.body))
        except SemelError:
            return None  # nothing to show; consumers park it
        return None if self._clock.now() - message.occurred_at > self._max_age else message


def _rest(queue: asyncio.Queue[Delivery | None]) -> list[Delivery | None]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
