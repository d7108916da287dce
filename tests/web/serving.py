"""A hub that serves live events, and messages for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from semel import Hub, MessageEnvelope, SqlAlchemyStorage
from semel.asgi.live import LiveEvents
from semel.asgi.stream import Viewer


def everything(_scope: Any) -> Viewer:
    return Viewer(tenant_id=None, show=lambda message: message.payload)


@asynccontextmanager
async def serving(
    storage: SqlAlchemyStorage, bus: Any = None, **options: Any
) -> AsyncIterator[tuple[Hub, LiveEvents]]:
    """A hub with live events of *orders*, and nothing else running."""
    hub = Hub("shop", storage=storage, bus=bus)
    options = {"authorize": everything, "signals": False, **options}
    live = LiveEvents(hub, options.pop("topics", ["orders"]), **options)
    async with hub.running(projector=False, consumers=False):
        yield hub, live


async def publish(hub: Hub, *payloads: Any, topic: str = "orders", **fields: Any) -> None:
    fields.setdefault("key", "one")
    messages = [MessageEnvelope(topic=topic, payload=payload, **fields) for payload in payloads]
    assert not any(await hub.bus.publish_many(messages))
