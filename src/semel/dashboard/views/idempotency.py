"""Keys of API calls; answers are not shown to anybody."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.access import Action
from semel.dashboard.calls import Call, missing
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Body, Deed, Rights, View
from semel.sqlalchemy.tables import IdempotencyRecord
from semel.states import IdempotencyKey, IdempotencyState

_NAMES = ("tenant_id", "principal", "method", "route", "key_hash")


class Keys(TypedDict):
    """A page of keys; `next` is the *before* of the page behind it."""

    rows: list[dict[str, Any]]
    next: str | None


async def read(call: Call) -> Keys:
    """Return a page, the newest keys first."""
    page = await call.storage.idempotency.search(
        tenant_id=call.tenant,
        principal=call.text("principal"),
        route=call.text("route"),
        state=call.choice("state", IdempotencyState),
        before=call.text("before"),
        limit=call.limit,
    )
    return Keys(rows=[_row(row) for row in page], next=page.next)


def _row(row: IdempotencyRecord) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _NAMES},
        "key_prefix": row.key_prefix,
        "state": row.state,
        "status_code": row.status_code,
        "locked_until": shapes.moment(row.locked_until),
        "created_at": shapes.moment(row.created_at),
        "completed_at": shapes.moment(row.completed_at),
        "expires_at": shapes.moment(row.expires_at),
    }


def _key(body: Body) -> IdempotencyKey:
    if not all(isinstance(body.get(name), str) and body[name] for name in _NAMES):
        raise missing()
    return IdempotencyKey(**{name: body[name] for name in _NAMES})


async def _rights(call: Call, body: Body) -> Rights:
    key = _key(body)
    await call.show(key.tenant_id)
    return [(Action.DELETE, key.tenant_id)]


async def _release(call: Call, body: Body) -> dict[str, bool]:
    released = await call.storage.idempotency.release(_key(body), actor=call.principal.name)
    return {"released": released}


VIEWS = (View(path="/idempotency", template="idempotency.html", read=read),)
DEEDS = (Deed(path="/api/idempotency/release", rights=_rights, do=_release),)
