"""Which rows an operator means; what is None does not matter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from semel.envelope import check_name, check_tenant
from semel.errors import ConfigurationError
from semel.states import InboxStatus, OutboxStatus


class _Filter:
    """Names are checked, times have a zone, and the range is not turned around."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, value in self.criteria().items():
            if isinstance(value, datetime):
                if value.tzinfo is None:
                    raise ConfigurationError(
                        f"{name} must be a datetime with a timezone, such as datetime.now(UTC)"
                    )
            elif isinstance(value, StrEnum):
                continue
            elif name == "tenant_id":
                check_tenant(value)
            else:
                check_name(name, value)
        since, until = getattr(self, "since", None), getattr(self, "until", None)
        if since is not None and until is not None and since >= until:
            raise ConfigurationError("since must be before until")

    def criteria(self) -> dict[str, Any]:
        """Return what is asked for, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None}

    def as_json(self) -> dict[str, str]:
        """Return the same as text, for the audit."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in self.criteria().items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFilter(_Filter):
    """Outbox rows. `since` and `until` are about `created_at`; `error` is a part of the text."""

    status: OutboxStatus | None = None
    topic: str | None = None
    event_type: str | None = None
    key: str | None = None
    tenant_id: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFilter(_Filter):
    """Inbox records. `since` and `until` are about `processed_at`."""

    status: InboxStatus | None = None
    consumer_name: str | None = None
    tenant_id: str | None = None
    event_type: str | None = None
    source: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter(_Filter):
    """What operators did; `action` is such as `outbox.requeue`."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
