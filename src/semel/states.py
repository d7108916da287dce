"""The states of rows, and the values that cross the seams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

#: How the reference of a request begins.
REQUEST = "request:"


class OutboxStatus(StrEnum):
    """Where an outbox row is in its life."""

    NEW = "NEW"
    PUBLISHING = "PUBLISHING"
    SENT = "SENT"
    FAILED = "FAILED"
    DEAD = "DEAD"


class InboxStatus(StrEnum):
    """How a message ended; RECEIVED: it has not, and only its attempts are counted."""

    RECEIVED = "RECEIVED"
    PROCESSED = "PROCESSED"
    DEAD = "DEAD"
    PARKED = "PARKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStats:
    """Counts by status, and how old the oldest unsent event is.

    A figure whose name is in *capped* (a status, or `blocked_keys`, `scheduled`, `parked`) is at
    least that: the table has more rows than were looked at. *operations* is the number of
    operators' interventions so far.
    """

    counts: Mapping[OutboxStatus, int]
    oldest_unsent_seconds: float | None
    blocked_keys: int
    scheduled: int
    parked: int
    capped: frozenset[str] = frozenset()
    operations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxStats:
    """What one consumer's part of the inbox holds.

    *redelivered*: records that took more than one attempt. *capped*: all this is about the newest
    records only, because there are more than were looked at.
    """

    consumer_name: str
    counts: Mapping[InboxStatus, int]
    oldest: datetime | None
    redelivered: int = 0
    capped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Something that is held back until it is resumed: everything, a topic or a tenant."""

    topic: str | None = None
    tenant_id: str | None = None
    since: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A message as the inbox sees it."""

    tenant_id: str
    consumer_name: str
    message_id: str
    event_type: str
    source: str | None = None
    payload_hash: str | None = None
    payload: str | None = None
    handler: str | None = None
    extra_data: Mapping[str, Any] | None = None


class Admission(StrEnum):
    """What the gate says of a message."""

    NEW = "NEW"
    DUPLICATE = "DUPLICATE"
    CONFLICT = "CONFLICT"


class IdempotencyState(StrEnum):
    """How far a call came: begun; its effects durable; its answer kept, too."""

    STARTED = "STARTED"
    COMMITTED = "COMMITTED"
    COMPLETED = "COMPLETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A client's key, and everything within which it is unique. The key itself is not kept."""

    tenant_id: str
    principal: str
    method: str
    route: str
    key_hash: str
    key_prefix: str = ""

    @property
    def reference(self) -> str:
        """How events name the request that caused them: it tells neither the key nor who asked."""
        return f"{REQUEST}{self.key_hash[:16]}:{self.method}:{self.route}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call was answered, and every repetition of it is."""

    status_code: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""


class Verdict(StrEnum):
    """What the store says of a key."""

    CLAIMED = "CLAIMED"
    IN_FLIGHT = "IN_FLIGHT"
    COMPLETED = "COMPLETED"
    NOT_KEPT = "NOT_KEPT"
    MISMATCH = "MISMATCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The verdict; with CLAIMED the token that ends the call, with COMPLETED its answer."""

    key: IdempotencyKey
    verdict: Verdict
    token: str = ""
    answer: Answer | None = None
