"""Which rows: the options that become a filter."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from semel.cli.command import Group
from semel.cli.times import instant
from semel.operations import InboxFilter, OutboxFilter
from semel.states import InboxStatus, OutboxStatus

_FORMS = "2026-11-16T08:30 (UTC), or 2h for two hours ago."


def _text(flag: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(flag, help=text)]


def _time(text: str) -> Any:
    return Annotated[datetime | None, typer.Option(parser=instant, metavar="TIME", help=text)]


def _state(kind: Any) -> Any:
    return Annotated[kind | None, typer.Option(case_sensitive=False, help="Only in this state.")]


_EVENTS: dict[str, Any] = {
    "topic": _text("--topic", "Only this topic."),
    "event_type": _text("--type", "Only this type of event."),
    "key": _text("--key", "Only this order key."),
    "tenant_id": _text("--tenant", "Only this tenant."),
    "aggregate_type": _text("--aggregate-type", "Only this type of aggregate."),
    "aggregate_id": _text("--aggregate-id", "Only this aggregate."),
    "since": _time(f"Written at or after: {_FORMS}"),
    "until": _time("Written before."),
    "error": _text("--error", "Only errors with this text in them."),
}
EVENTS = Group("where", {"status": _state(OutboxStatus), **_EVENTS}, OutboxFilter)
#: For verbs, which decide themselves in which state a row must be.
EVENTS_OF_VERB = Group("where", _EVENTS, OutboxFilter)
MESSAGES = Group(
    "where",
    {
        "status": _state(InboxStatus),
        "consumer_name": _text("--consumer", "Only this consumer."),
        "tenant_id": _text("--tenant", "Only this tenant."),
        "event_type": _text("--type", "Only this type of event."),
        "source": _text("--source", "Only from this topic."),
        "since": _time(f"Processed at or after: {_FORMS}"),
        "until": _time("Processed before."),
        "reason": _text("--reason", "Only dead or parked ones with this text in the reason."),
    },
    InboxFilter,
)
