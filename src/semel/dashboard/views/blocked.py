"""Keys that wait behind a DEAD event."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Deed, View
from semel.errors import redact


class Blocked(TypedDict):
    """The keys, those blocked first of all."""

    keys: list[dict[str, Any]]
    more: bool


async def read(call: Call) -> Blocked:
    """Return the keys and how many events wait for each."""
    found = await call.storage.outbox.blocked_keys(tenant_id=call.tenant, limit=call.limit)
    return Blocked(
        keys=[
            {
                "tenant_id": key.tenant_id,
                "key": key.key,
                "event_id": key.event_id,
                "topic": key.topic,
                "since": shapes.moment(key.since),
                "error": None if key.error is None else redact(key.error),
                "dead": key.dead,
                "waiting": key.waiting.number,
                "capped": key.waiting.capped,
            }
            for key in found
        ],
        more=len(found) == call.limit,
    )


VIEWS = (View(path="/blocked", template="blocked.html", read=read),)
DEEDS: tuple[Deed, ...] = ()
