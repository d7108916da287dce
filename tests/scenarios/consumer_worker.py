"""A consumer on the database bus that kills itself at a given moment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from semel import Hub, MessageEnvelope, RetryPolicy, SqlAlchemyStorage, SQLAlchemyUnitOfWork
from semel.transports.database import DatabaseMessageBus
from tests.scenarios.broker_worker import Effect

_DEATH = 5


class Deadly:
    """A bus whose deliveries may kill the process when they are acknowledged."""

    def __init__(self, bus: DatabaseMessageBus, *, moment: str) -> None:
        self._bus = bus
        self._moment = moment
        self._acks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Any:
        """Subscribe; the fifth ack is the last thing that happens."""
        subscription: Any = await self._bus.subscribe(topic, group=group, prefetch=prefetch)
        deadly = self

        class Subscription:
            def __getattr__(self, name: str) -> Any:
                return getattr(subscription, name)

            async def __aiter__(self) -> Any:
                async for delivery in subscription:
                    yield deadly.wrap(delivery)

        return Subscription()

    def wrap(self, delivery: Any) -> Any:
        """Return the delivery with a deadly ack."""
        outer = self

        class Delivery:
            def __getattr__(self, name: str) -> Any:
                return getattr(delivery, name)

            async def ack(self) -> None:
                outer.count()
                await delivery.ack()

        return Delivery()

    def count(self) -> None:
        """Die before the fifth ack: the effect is committed, the broker does not know."""
        self._acks += 1
        if self._moment == "before-ack" and self._acks == _DEATH:
            os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    """Consume until SIGTERM, or until the moment has come."""
    settings = json.loads(sys.argv[1])
    moment: str = settings["moment"]
    storage = SqlAlchemyStorage(settings["database"])
    bus = DatabaseMessageBus(storage, lease_seconds=2)
    hub = Hub("shop", storage=storage, bus=Deadly(bus, moment=moment))  # type: ignore[arg-type]
    consumer = hub.consumer("orders", concurrency=1, retry=RetryPolicy(base_seconds=0.05))
    runs = 0

    @consumer.on("OrderPlaced")
    async def handle(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        nonlocal runs
        runs += 1
        payload = event.payload
        uow.session.add(Effect(consumer="shop", key=payload["key"], version=payload["version"]))
        await uow.session.flush()
        if moment == "in-handler" and runs == _DEATH:
            os.kill(os.getpid(), signal.SIGKILL)

    await hub.run_forever(projector=False)


if __name__ == "__main__":
    asyncio.run(main())
