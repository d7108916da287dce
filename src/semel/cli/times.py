"""Instants and time spans, as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(?P<number>\d{1,9})\s*(?P<unit>s|min|m|h|d|w)")


def span(text: str | timedelta) -> timedelta:
    """Return `30s`, `15m`, `2h`, `7d` or `4w` as a time span."""
    if isinstance(text, timedelta):
        return text
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time span: write 30s, 15m, 2h, 7d or 4w")
    try:
        return timedelta(**{_UNITS[found["unit"]]: int(found["number"])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is longer than anything lasts") from None


def instant(text: str | datetime) -> datetime:
    """Return an ISO 8601 time (in UTC unless it says otherwise), or a time span ago."""
    if isinstance(text, datetime):
        return text
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        if _SPAN.fullmatch(text.strip().lower()) is None:
            raise typer.BadParameter(
                f"{text!r} is no time: write 2026-11-16T08:30, or 2h for two hours ago"
            ) from None
        try:
            return datetime.now(UTC) - span(text)
        except OverflowError:
            raise typer.BadParameter(f"{text!r} is before all times") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
