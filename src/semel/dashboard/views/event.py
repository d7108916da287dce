"""One event: what it is, what became of it, what it caused, and why it does not move."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from starlette.exceptions import HTTPException

from semel.dashboard.access import Action
from semel.dashboard.calls import Call, missing
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Body, Deed, Rights, View
from semel.dashboard.views.graph import Graph, graph
from semel.errors import redact
from semel.sqlalchemy.tables import OutboxRecord

MAX_IDS = 200


class Step(TypedDict):
    """A moment in an event's life."""

    what: str
    at: str | None
    detail: str | None


class Event(TypedDict):
    """The page of one event."""

    event: dict[str, Any]
    cause: shapes.Cause
    why: list[dict[str, Any]]
    timeline: list[Step]
    graph: Graph
    rights: dict[str, bool]


async def _load(call: Call, event_id: str | None) -> OutboxRecord:
    record = None if event_id is None else await call.storage.outbox.get(event_id)
    if record is None:
        raise missing()
    await call.show(record.tenant_id)
    return record


async def read(call: Call) -> Event:
    """Return everything that is known about the event."""
    record = await _load(call, call.text("id"))
    rights = {action.value: await call.may(action, record.tenant_id) for action in Action}
    why = await call.storage.outbox.why(record.id)
    drawn = await graph(call, record)
    return Event(
        event=shapes.event(record, payload=rights[Action.VIEW_PAYLOAD]),
        cause=shapes.cause(record),
        why=[
            {
                "kind": reason.kind.value,
                "sentence": redact(reason.sentence),
                "data": shapes.clean(reason.data),
            }
            for reason in (why.reasons if why is not None else ())
        ],
        timeline=_timeline(record, drawn),
        graph=drawn,
        rights=rights,
    )


def _timeline(record: OutboxRecord, drawn: Graph) -> list[Step]:
    steps = [
        Step(what="occurred", at=shapes.moment(record.occurred_at), detail=None),
        Step(what="committed", at=shapes.moment(record.created_at), detail=None),
    ]
    if record.available_at is not None:
        steps.append(Step(what="due", at=shapes.moment(record.available_at), detail=None))
    if record.last_attempt_at is not None and record.retry_count:
        detail = str(record.retry_count)
        at = shapes.moment(record.last_attempt_at)
        steps.append(Step(what="attempted", at=at, detail=detail))
    if record.status == "DEAD":
        steps.append(Step(what="dead", at=shapes.moment(record.last_attempt_at), detail=None))
    elif record.status == "FAILED":
        steps.append(Step(what="again", at=shapes.moment(record.retry_after), detail=None))
    if record.sent_at is not None:
        steps.append(Step(what="sent", at=shapes.moment(record.sent_at), detail=None))
    steps += [
        Step(what="handled", at=handler["processed_at"], detail=handler["consumer_name"])
        for handler in drawn["handlers"]
    ]
    return sorted(steps, key=lambda step: step["at"] or "9")


async def _edit_page(call: Call) -> Event:
    record = await _load(call, call.text("id"))
    await call.need(Action.EDIT, record.tenant_id)
    await call.need(Action.VIEW_PAYLOAD, record.tenant_id)
    return await read(call)


def _ids(body: Body) -> list[str]:
    ids = body.get("ids")
    if not isinstance(ids, list) or not ids or len(ids) > MAX_IDS:
        raise HTTPException(400, f"ids is a list of 1 to {MAX_IDS} ids of events.")
    if not all(isinstance(each, str) and each for each in ids):
        raise HTTPException(400, "ids is a list of texts.")
    return ids


def _rights_to(action: Action) -> Any:
    async def rights(call: Call, body: Body) -> Rights:
        records = [await _load(call, event_id) for event_id in _ids(body)]
        return [(action, tenant) for tenant in {record.tenant_id for record in records}]

    return rights


async def _requeue(call: Call, body: Body) -> dict[str, int]:
    changed = await call.storage.outbox.requeue(_ids(body), actor=call.principal.name)
    return {"changed": changed}


async def _release(call: Call, body: Body) -> dict[str, int]:
    changed = await call.storage.outbox.release(_ids(body), actor=call.principal.name)
    return {"changed": changed}


async def _drop(call: Call, body: Body) -> dict[str, int]:
    changed = await call.storage.outbox.drop(_ids(body), actor=call.principal.name)
    return {"changed": changed}


async def _edit_rights(call: Call, body: Body) -> Rights:
    record = await _load(call, body.get("id") if isinstance(body.get("id"), str) else None)
    return [(Action.EDIT, record.tenant_id), (Action.VIEW_PAYLOAD, record.tenant_id)]


async def _edit(call: Call, body: Body) -> dict[str, str]:
    text = body.get("payload")
    if not isinstance(text, str):
        raise HTTPException(400, "payload is the text of a JSON document.")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The payload is not JSON.") from None
    made = await call.storage.outbox.edit_and_requeue_as_new(
        body["id"], payload, actor=call.principal.name
    )
    return {"id": made}


VIEWS = (
    View(path="/event", template="event.html", read=read),
    View(path="/edit", template="edit.html", read=_edit_page),
)
DEEDS = (
    Deed(path="/api/events/requeue", rights=_rights_to(Action.REQUEUE), do=_requeue),
    Deed(path="/api/events/release", rights=_rights_to(Action.REQUEUE), do=_release),
    Deed(path="/api/events/drop", rights=_rights_to(Action.DELETE), do=_drop),
    Deed(path="/api/events/edit", rights=_edit_rights, do=_edit),
)
