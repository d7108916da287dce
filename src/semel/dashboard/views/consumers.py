"""This process's consumers: whether they are well, and how far behind."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Deed, View
from semel.dashboard.views.inbox import consumers as inbox_figures

_PATIENCE_SECONDS = 5.0


class Consumers(TypedDict):
    """Consumers of this process, and what the inbox knows of all."""

    consumers: list[dict[str, Any]]
    inbox: list[dict[str, Any]]
    running: bool


async def read(call: Call) -> Consumers:
    """Ask the consumers, and the inbox."""
    running = "consumers" in call.hub.runs
    health = call.hub.health
    if running:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await health.check_health()
        except TimeoutError:
            pass  # what was known before is shown
    states = health.get_health_status()
    return Consumers(
        consumers=[
            {
                "name": name,
                "is_healthy": info.is_healthy,
                "reason": info.reason,
                "is_connected": info.is_connected,
                "last_message_at": shapes.moment(info.last_message_at),
                "error_count": info.error_count,
                "in_flight": info.in_flight,
                "oldest_running_seconds": info.oldest_running_seconds,
                "lag": info.lag,
            }
            for name, info in states.items()
        ],
        inbox=await inbox_figures(call),
        running=running,
    )


VIEWS = (View(path="/consumers", template="consumers.html", read=read, whole=True),)
DEEDS: tuple[Deed, ...] = ()
