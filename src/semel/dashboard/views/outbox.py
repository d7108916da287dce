"""Events by status, topic, type, key, time and error."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Deed, View
from semel.operations import OutboxFilter
from semel.states import OutboxStatus


class Events(TypedDict):
    """A page of events; `next` is the *before* of the page behind it."""

    rows: list[dict[str, Any]]
    next: int | None
    where: dict[str, str]


def where(call: Call) -> OutboxFilter:
    """Return what the query asks for, within the tenant that it is about."""
    return OutboxFilter(
        status=call.choice("status", OutboxStatus),
        topic=call.text("topic"),
        event_type=call.text("type"),
        key=call.text("key"),
        tenant_id=call.tenant,
        aggregate_type=call.text("aggregate_type"),
        aggregate_id=call.text("aggregate_id"),
        since=call.moment("since"),
        until=call.moment("until"),
        error=call.text("error"),
    )


async def read(call: Call) -> Events:
    """Return a page, the newest events first."""
    chosen = where(call)
    event_id = call.text("id")
    if event_id is not None:
        found = await call.storage.outbox.get(event_id)
        rows = [found] if found is not None and call.tenant in (None, found.tenant_id) else []
        return Events(rows=[shapes.event(row) for row in rows], next=None, where={"id": event_id})
    page = await call.storage.outbox.search(
        chosen, before=call.number("before", None), limit=call.limit
    )
    return Events(rows=[shapes.event(row) for row in page], next=page.next, where=chosen.as_json())


VIEWS = (View(path="/outbox", template="outbox.html", read=read),)
DEEDS: tuple[Deed, ...] = ()
