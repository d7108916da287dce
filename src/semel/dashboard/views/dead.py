"""DEAD events, grouped by what their errors have in common."""

from __future__ import annotations

import re
from typing import TypedDict

from semel.dashboard.calls import Call
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Deed, View
from semel.errors import redact
from semel.operations import DeadGroup

# What differs between errors of one kind: quoted texts, ids, numbers.
_VARIES = re.compile(
    r"""'[^']*'|"[^"]*"|`[^`]*`|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\b[0-9a-fA-F]{12,}\b|\d+"""
)
_MAX_TEXT = 200


class Group(TypedDict):
    """DEAD events of a topic and type whose errors are alike.

    `fragment` is the longest part of the text that they share: a filter by topic, type and that
    finds the group again. `count` is at least that if `capped`.
    """

    topic: str
    event_type: str
    pattern: str
    fragment: str | None
    example: str | None
    count: int
    capped: bool
    last_at: str | None
    last_id: str | None


class Dead(TypedDict):
    """The page of DEAD events."""

    groups: list[Group]
    count: int
    capped: bool


def pattern(error: str | None) -> tuple[str, str | None]:
    """Return the text with what varies left out, and its longest part without."""
    if not error:
        return "", None
    fixed = [part.strip()[:_MAX_TEXT] for part in _VARIES.split(error)]
    shown = [part for part in fixed if part in redact(error)]
    return _VARIES.sub("…", error), max(shown, key=len, default="") or None


async def groups(call: Call) -> list[Group]:
    """Return the groups, the largest first."""
    merged: dict[tuple[str, str, str | None], Group] = {}
    for found in await call.storage.outbox.dead_groups(tenant_id=call.tenant, limit=1000):
        text, fragment = pattern(found.error)
        key = (found.topic, found.event_type, fragment)
        group = merged.get(key)
        if group is None:
            merged[key] = _group(found, text, fragment)
            continue
        group["count"] += found.count.number
        if (shapes.moment(found.last_at) or "") > (group["last_at"] or ""):
            group["last_at"], group["last_id"] = shapes.moment(found.last_at), found.last_id
    return sorted(merged.values(), key=lambda group: -group["count"])


async def read(call: Call) -> Dead:
    """Return the groups and how many events they are."""
    found = await groups(call)
    return Dead(
        groups=found,
        count=sum(group["count"] for group in found),
        capped=any(group["capped"] for group in found),
    )


def _group(found: DeadGroup, text: str, fragment: str | None) -> Group:
    return Group(
        topic=found.topic,
        event_type=found.event_type,
        pattern=redact(text),
        fragment=fragment,
        example=None if found.error is None else redact(found.error),
        count=found.count.number,
        capped=found.count.capped,
        last_at=shapes.moment(found.last_at),
        last_id=found.last_id,
    )


VIEWS = (View(path="/dead", template="dead.html", read=read),)
DEEDS: tuple[Deed, ...] = ()
