"""What operators did."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Deed, View
from semel.operations import AuditFilter


class Audit(TypedDict):
    """A page of deeds."""

    rows: list[dict[str, Any]]
    next: int | None


async def read(call: Call) -> Audit:
    """Return a page, the newest deeds first."""
    where = AuditFilter(
        actor=call.text("actor"),
        action=call.text("action"),
        target=call.text("target"),
        since=call.moment("since"),
        until=call.moment("until"),
    )
    page = await call.storage.audit.search(
        where, before=call.number("before", None), limit=call.limit
    )
    return Audit(
        rows=[
            {
                "id": row.id,
                "at": shapes.moment(row.at),
                "actor": row.actor,
                "action": row.action,
                "target": row.target,
                "detail": row.detail,
            }
            for row in page
        ],
        next=page.next,
    )


VIEWS = (View(path="/audit", template="audit.html", read=read, whole=True),)
DEEDS: tuple[Deed, ...] = ()
