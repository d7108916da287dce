"""What operators hold back."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.access import Action
from semel.dashboard.calls import Call, optional
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Body, Deed, Rights, View


class Pauses(TypedDict):
    """What is paused."""

    pauses: list[dict[str, Any]]


async def visible(call: Call) -> list[dict[str, Any]]:
    """Return the pauses that concern the tenant; the reason only of its own."""
    return [
        {
            "topic": pause.topic,
            "tenant_id": pause.tenant_id,
            "since": shapes.moment(pause.since),
            "reason": pause.reason if call.tenant in (None, pause.tenant_id) else None,
        }
        for pause in await call.storage.outbox.pauses()
        if call.tenant is None or pause.tenant_id in (None, call.tenant)
    ]


async def read(call: Call) -> Pauses:
    """Return all that may be seen."""
    return Pauses(pauses=await visible(call))


async def _rights(_call: Call, body: Body) -> Rights:
    # A topic belongs to all tenants.
    return [(Action.PAUSE, optional(body, "tenant_id"))]


async def _pause(call: Call, body: Body) -> dict[str, bool]:
    await call.storage.outbox.pause(
        topic=optional(body, "topic"),
        tenant_id=optional(body, "tenant_id"),
        reason=optional(body, "reason"),
        actor=call.principal.name,
    )
    return {"paused": True}


async def _resume(call: Call, body: Body) -> dict[str, bool]:
    resumed = await call.storage.outbox.resume(
        topic=optional(body, "topic"),
        tenant_id=optional(body, "tenant_id"),
        actor=call.principal.name,
    )
    return {"resumed": resumed}


VIEWS = (View(path="/pauses", template="pauses.html", read=read),)
DEEDS = (
    Deed(path="/api/pauses/pause", rights=_rights, do=_pause),
    Deed(path="/api/pauses/resume", rights=_rights, do=_resume),
)
