"""What is live: one stream of server-sent events per open page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from semel.dashboard.access import Action
from semel.dashboard.calls import Call

MAX_STREAMS = 500
# Then the browser comes back, and is asked again who it is.
_LIFETIME_SECONDS = 600.0
_BEAT_SECONDS = 20.0
_PACE_SECONDS = 0.2


async def answer(call: Call) -> Response:
    """Return the stream of the call's tenant."""
    if call.dashboard.streams >= MAX_STREAMS:
        raise HTTPException(503, "Too many pages are open.")
    return StreamingResponse(
        _events(call),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
    )


async def _events(call: Call) -> AsyncIterator[str]:
    dashboard, loop = call.dashboard, asyncio.get_running_loop()
    ends = loop.time() + _LIFETIME_SECONDS
    told: dict[str, str] = {}
    dashboard.streams += 1
    try:
        with dashboard.live.watching(call.tenant) as series:
            yield "retry: 3000\n\n"
            while loop.time() < ends and not dashboard.live.ended:
                point = series.recent[-1] if series.recent else None
                news: dict[str, Any] = {
                    "point": point,
                    "trouble": series.failed is not None,
                    "jobs": await visible_jobs(call),
                }
                for name, value in news.items():
                    text = json.dumps(value, ensure_ascii=False)
                    if told.get(name) != text:
                        told[name] = text
                        yield f"event: {name}\ndata: {text}\n\n"
                await dashboard.live.wait(_BEAT_SECONDS)
                await asyncio.sleep(_PACE_SECONDS)
                yield ": still here\n\n"
    finally:
        dashboard.streams -= 1


async def visible_jobs(call: Call) -> list[dict[str, Any]]:
    """Return the bulk actions that whoever asks may see."""
    return [
        dict(job.shape())
        for job in call.dashboard.jobs.all()
        if (call.tenant is None or job.where.tenant_id == call.tenant)
        and await call.may(Action.VIEW, job.where.tenant_id)
    ]
