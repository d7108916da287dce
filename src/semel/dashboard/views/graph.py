"""What led to an event, who handled it, and what followed."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.views import shapes
from semel.operations import OutboxFilter
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from semel.states import REQUEST

_DEPTH = 8
_CONSUMERS = 20
_NEARBY = 500
_MARGIN = timedelta(seconds=2)
_REQUEST = re.compile(f"{REQUEST}([0-9a-f]{{16}}):([^:]+):(.+)")


class Node(TypedDict):
    """An event of the graph."""

    id: str
    topic: str
    event_type: str
    status: str
    created_at: str | None


class Request(TypedDict):
    """A request by its idempotency key: the beginning of the key's hash, and where it was used."""

    key: str
    method: str
    route: str


class Graph(TypedDict):
    """Causes, the first one first; handlers of the event; events that these have emitted.

    `request` caused the first of them; else `origin` did, which is no event here: a request without
    a key, by its correlation id, or an event of another service. `partial`: there may be more
    events than were looked at.
    """

    request: Request | None
    origin: str | None
    causes: list[Node]
    handlers: list[dict[str, Any]]
    following: list[Node]
    partial: bool


async def graph(call: Call, record: OutboxRecord) -> Graph:
    """Follow the ids of causes up, and the inbox down; looks at a bounded number of rows."""
    causes, origin = await _causes(call, record)
    handlers = await _handlers(call, record)
    following, partial = await _following(call, record, handlers)
    request = _request(origin)
    return Graph(
        request=request,
        origin=origin if request is None else None,
        causes=causes,
        handlers=[shapes.message(handler) for handler in handlers],
        following=following,
        partial=partial,
    )


async def _causes(call: Call, record: OutboxRecord) -> tuple[list[Node], str | None]:
    causes: list[Node] = []
    first, seen = record, {record.id}
    while len(causes) < _DEPTH:
        about = shapes.cause(first)
        current = about["causation_id"]
        if current is None or current in seen:
            return causes, about["correlation_id"]
        seen.add(current)
        found = await call.storage.outbox.get(current)
        # Another tenant's event is as if it were not there.
        if found is None or found.tenant_id != record.tenant_id:
            return causes, current
        causes.insert(0, _node(found))
        first = found
    return causes, None


def _request(origin: str | None) -> Request | None:
    found = _REQUEST.fullmatch(origin or "")
    return None if found is None else Request(key=found[1], method=found[2], route=found[3])


async def _handlers(call: Call, record: OutboxRecord) -> list[InboxRecord]:
    names = {consumer.name for consumer in call.hub.consumers.values()}
    names |= {stats.consumer_name for stats in await call.storage.inbox.stats()}
    found = [
        await call.storage.inbox.get(record.id, consumer_name=name, tenant_id=record.tenant_id)
        for name in sorted(names)[:_CONSUMERS]
    ]
    return [each for each in found if each is not None]


async def _following(
    call: Call, record: OutboxRecord, handlers: list[InboxRecord]
) -> tuple[list[Node], bool]:
    """Look for events written in the transactions of the handlers: at about that time."""
    nodes: dict[str, Node] = {}
    partial = False
    for handler in handlers:
        if handler.processed_at is None:
            continue
        took = timedelta(milliseconds=handler.processing_duration_ms or 0)
        page = await call.storage.outbox.search(
            OutboxFilter(
                tenant_id=record.tenant_id,
                since=handler.processed_at - took - _MARGIN,
                until=handler.processed_at + _MARGIN,
            ),
            limit=_NEARBY,
        )
        partial = partial or page.next is not None
        for other in page:
            if shapes.cause(other)["causation_id"] == record.id:
                nodes[other.id] = _node(other)
    return list(nodes.values()), partial


def _node(record: OutboxRecord) -> Node:
    return Node(
        id=record.id,
        topic=record.topic,
        event_type=record.event_type,
        status=record.status,
        created_at=shapes.moment(record.created_at),
    )
