"""Why an event is where it is, in a structure and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from semel.states import OutboxStatus


class ReasonKind(StrEnum):
    """What an event waits for, or how it ended."""

    SENT = "sent"
    DEAD = "dead"
    SCHEDULED = "scheduled"
    PAUSED = "paused"
    BLOCKED = "blocked"
    NO_PROJECTOR = "no_projector"
    NO_OWNER = "no_owner"
    OWNER_SILENT = "owner_silent"
    BREAKER = "breaker"
    RETRY = "retry"
    BEHIND = "behind"
    IN_FLIGHT = "in_flight"
    DUE = "due"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason; *data* is JSON-ready: ids, names, times, texts of errors."""

    kind: ReasonKind
    sentence: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer: the first reason is the one to look at first."""

    event_id: str
    status: OutboxStatus
    reasons: Sequence[Reason]

    @property
    def sentence(self) -> str:
        """Everything in words."""
        return " ".join(reason.sentence for reason in self.reasons)
