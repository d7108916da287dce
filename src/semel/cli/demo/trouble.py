"""A bus that goes wrong when a file in the demo's folder says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from semel.envelope import MessageEnvelope
from semel.errors import BusError, PublishError
from semel.protocols import MessageBus, Subscription

_DUPLICATE_EVERY = 9


class TroubledBus:
    """Passes everything to the real bus, except in an outage, twice, or to its death."""

    def __init__(self, bus: MessageBus, folder: Path) -> None:
        self._bus = bus
        self._folder = folder
        self._count = 0

    async def start(self) -> None:
        """Connect."""
        await self._bus.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._bus.close()

    async def ping(self) -> None:
        """Raise during an outage."""
        if (self._folder / "outage").exists():
            raise BusError("the broker is away")
        await self._bus.ping()

    async def publish(self, message: MessageEnvelope) -> None:
        """Publish one message."""
        error = (await self.publish_many([message]))[0]
        if error is not None:
            raise error

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        """Publish; some messages twice, and in the end perhaps only half."""
        if (self._folder / "outage").exists():
            raise BusError("the broker is away")
        deadly = self._folder / "kill-projector"
        if deadly.exists() and len(messages) > 1:
            deadly.unlink(missing_ok=True)
            half = messages[: len(messages) // 2]
            await self._bus.publish_many(half)
            self._log(half)
            os.kill(os.getpid(), signal.SIGKILL)
        results = await self._bus.publish_many(messages)
        sent = [m for m, error in zip(messages, results, strict=True) if error is None]
        self._count += len(sent)
        self._log(sent)
        if sent and self._count >= _DUPLICATE_EVERY:
            self._count = 0
            again = sent[-1:]
            await self._bus.publish_many(again)
            self._log(again)
        return results

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Subscription:
        """Subscribe to the real bus."""
        return await self._bus.subscribe(topic, group=group, prefetch=prefetch)

    def _log(self, messages: Sequence[MessageEnvelope]) -> None:
        with (self._folder / "published.log").open("a") as log:
            log.write("".join(f"{message.event_id}\n" for message in messages))
