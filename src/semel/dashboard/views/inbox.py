"""Messages that consumers have dealt with, and how many came twice."""

from __future__ import annotations

from typing import Any, TypedDict

from semel.dashboard.access import Action
from semel.dashboard.calls import Call, missing, optional
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Body, Deed, Rights, View
from semel.operations import InboxFilter
from semel.sqlalchemy.tables import InboxRecord
from semel.states import InboxStatus


class Messages(TypedDict):
    """A page of messages, and figures per consumer for those who may see all tenants."""

    rows: list[dict[str, Any]]
    next: str | None
    where: dict[str, str]
    consumers: list[dict[str, Any]]


class Message(TypedDict):
    """One message."""

    message: dict[str, Any]
    is_event: bool
    rights: dict[str, bool]


async def read(call: Call) -> Messages:
    """Return a page, the newest messages first."""
    where = InboxFilter(
        status=call.choice("status", InboxStatus),
        consumer_name=call.text("consumer"),
        tenant_id=call.tenant,
        event_type=call.text("type"),
        source=call.text("source"),
        since=call.moment("since"),
        until=call.moment("until"),
        reason=call.text("reason"),
    )
    page = await call.storage.inbox.search(where, before=call.text("before"), limit=call.limit)
    return Messages(
        rows=[shapes.message(row) for row in page],
        next=page.next,
        where=where.as_json(),
        consumers=await consumers(call) if call.tenant is None else [],
    )


async def consumers(call: Call) -> list[dict[str, Any]]:
    """Return what each consumer's part of the inbox holds."""
    found = []
    for stats in await call.storage.inbox.stats():
        total = sum(stats.counts.values())
        found.append(
            {
                "consumer_name": stats.consumer_name,
                "counts": {status.value: stats.counts.get(status, 0) for status in InboxStatus},
                "total": total,
                "redelivered": stats.redelivered,
                "redelivery_rate": stats.redelivered / total if total else 0.0,
                "duplicate_rate": _duplicate_rate(call, stats.consumer_name),
                "oldest": shapes.moment(stats.oldest),
                "capped": stats.capped,
            }
        )
    return found


def _duplicate_rate(call: Call, name: str) -> float | None:
    """Return the share of messages that this process's consumers have skipped as known."""
    ours = [each for each in call.hub.consumers.values() if each.name == name]
    skipped = sum(each.duplicates for each in ours)
    handled = skipped + sum(each.processed for each in ours)
    return skipped / handled if handled else None


async def _load(call: Call, message_id: Any, consumer: Any, tenant: Any) -> InboxRecord:
    if not all(isinstance(each, str) and each for each in (message_id, consumer, tenant)):
        raise missing()
    await call.show(tenant)
    record = await call.storage.inbox.get(message_id, consumer_name=consumer, tenant_id=tenant)
    if record is None:
        raise missing()
    return record


async def _message(call: Call) -> Message:
    record = await _load(call, call.text("id"), call.text("consumer"), call.text("of"))
    rights = {action.value: await call.may(action, record.tenant_id) for action in Action}
    event = await call.storage.outbox.get(record.message_id)
    return Message(
        message=shapes.message(record, payload=rights[Action.VIEW_PAYLOAD]),
        is_event=event is not None and event.tenant_id == record.tenant_id,
        rights=rights,
    )


async def _rights(call: Call, body: Body) -> Rights:
    record = await _load(
        call, body.get("message_id"), body.get("consumer_name"), body.get("tenant_id")
    )
    return [(Action.DELETE, record.tenant_id)]


async def _forget(call: Call, body: Body) -> dict[str, bool]:
    forgotten = await call.storage.inbox.forget(
        body["message_id"],
        consumer_name=body["consumer_name"],
        tenant_id=optional(body, "tenant_id") or "default",
        actor=call.principal.name,
    )
    return {"forgotten": forgotten}


VIEWS = (
    View(path="/inbox", template="inbox.html", read=read),
    View(path="/message", template="message.html", read=_message),
)
DEEDS = (Deed(path="/api/inbox/forget", rights=_rights, do=_forget),)
