"""Reads a subscription in the background, so that a test can say what it expects."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from semel.envelope import MessageEnvelope
from semel.protocols import Delivery, Subscription
from semel.wire import decode


class Reader:
    """Collects deliveries without acking them; leaving the block closes the subscription.

    The iteration is never cancelled by a time-out, as a real consumer's is not.
    """

    def __init__(self, subscription: Subscription, *, patience_seconds: float = 10.0) -> None:
        self.subscription = subscription
        self.patience_seconds = patience_seconds
        self._arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        self._task = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.subscription.close()
        await self.ended()

    async def take(self, count: int = 1) -> list[Delivery]:
        """Return the next *count* deliveries; `TimeoutError` if they do not come in time."""
        taken: list[Delivery] = []
        async with asyncio.timeout(self.patience_seconds):
            while len(taken) < count:
                taken.append(await self._next())
        return taken

    async def messages(self, count: int) -> list[MessageEnvelope]:
        """Take, ack and decode the next *count* deliveries, each before the next."""
        messages: list[MessageEnvelope] = []
        for _ in range(count):
            (delivery,) = await self.take()
            messages.append(decode(delivery.wire))
            await delivery.ack()
        return messages

    async def silent(self, seconds: float) -> bool:
        """Tell whether nothing (more) arrives within *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                # Put back: the next take() must not miss what this one saw.
                self._arrived.put_nowait(await self._arrived.get())
        except TimeoutError:
            return True
        return False

    async def ended(self) -> None:
        """Return once the iteration is over; `TimeoutError` if it goes on."""
        async with asyncio.timeout(self.patience_seconds):
            await asyncio.shield(self._task)

    async def _read(self) -> None:
        async for delivery in self.subscription:
            self._arrived.put_nowait(delivery)

    async def _next(self) -> Delivery:
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        arrival = asyncio.ensure_future(self._arrived.get())
        try:
            await asyncio.wait({arrival, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if arrival.done():
                return arrival.result()
            self._task.result()
            raise AssertionError("the subscription ended, but more deliveries were expected")
        finally:
            arrival.cancel()
