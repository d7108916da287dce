"""How it stands: figures that move, and what needs a person."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.live import Point
from semel.dashboard.stream import visible_jobs
from semel.dashboard.views import dead
from semel.dashboard.views.base import Deed, View
from semel.dashboard.views.pauses import visible as visible_pauses
from semel.errors import redact

_TOP = 5


class Overview(TypedDict):
    """The first page."""

    point: Point | None
    recent: list[Point]
    minutes: list[Point]
    groups: list[dead.Group]
    pauses: list[dict[str, Any]]
    breakers: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    trouble: bool


async def read(call: Call) -> Overview:
    """Take what the sampler knows; only what needs a person is asked for."""
    live = call.dashboard.live
    series = live.series(call.tenant)
    if not series.recent:
        with live.watching(call.tenant):
            await live.wait(0.7)
    point = series.recent[-1] if series.recent else None
    groups = await dead.groups(call) if point is not None and point["dead"] else []
    return Overview(
        point=point,
        recent=list(series.recent),
        minutes=list(series.minutes),
        groups=groups[:_TOP],
        pauses=await visible_pauses(call) if point is not None and point["pauses"] else [],
        breakers=await _breakers(call) if point is not None and point["breakers"] else [],
        jobs=await visible_jobs(call),
        trouble=series.failed is not None,
    )


async def _breakers(call: Call) -> list[dict[str, Any]]:
    if not call.rights["whole"]:
        return []
    return [
        {
            "projector": worker.id,
            "topic": breaker.topic,
            "since": breaker.since.isoformat(),
            "trips": breaker.trips,
            "error": redact(breaker.error),
        }
        for worker in await call.storage.workers.workers()
        if worker.is_alive
        for breaker in worker.breakers
    ]


VIEWS = (View(path="/", template="overview.html", read=read),)
DEEDS: tuple[Deed, ...] = ()
