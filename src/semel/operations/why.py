"""Why an event is where it is, in a structure and in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from semel.operations.answers import Lease, Worker
from semel.states import OutboxStatus, Pause

_ALL_TENANTS = "*"


class ReasonKind(StrEnum):
    """What an event waits for, or how it ended."""

    SENT = "sent"
    DEAD = "dead"
    PAUSED = "paused"
    SCHEDULED = "scheduled"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another event of the same key."""

    event_id: str
    status: OutboxStatus
    since: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the tables say about an event; seconds are by the database's clock."""

    event_id: str
    tenant_id: str
    topic: str
    key: str | None
    partition: int
    status: OutboxStatus
    attempts: int = 0
    error: str | None = None
    sent_at: datetime | None = None
    last_attempt_at: datetime | None = None
    available_at: datetime | None = None
    available_in: float | None = None
    retry_at: datetime | None = None
    retry_in: float | None = None
    blocks_its_key: bool = False
    is_scheduled: bool = False
    pauses: Sequence[Pause] = ()
    blocker: Other | None = None
    ahead: Other | None = None
    leases: Sequence[Lease] = ()
    workers: Sequence[Worker] = ()


def explain(facts: Facts) -> Why:
    """Say in order of importance what keeps the event."""
    reasons = list(_ended(facts)) or [
        *_held(facts),
        *_owned(facts),
        *_trouble(facts),
    ]
    if not reasons:
        reasons = [_moving(facts)]
    return Why(event_id=facts.event_id, status=facts.status, reasons=tuple(reasons))


def _ended(facts: Facts) -> Iterator[Reason]:
    if facts.status is OutboxStatus.SENT:
        yield _reason(ReasonKind.SENT, f"It was sent at {_time(facts.sent_at)}.", at=facts.sent_at)
    elif facts.status is OutboxStatus.DEAD:
        if facts.key is None:
            key = "It has no key, so nothing waits for it."
        elif facts.blocks_its_key:
            key = f"Its key {facts.key!r} waits until it is requeued, released or dropped."
        else:
            key = f"Its key {facts.key!r} goes on without it."
        yield _reason(
            ReasonKind.DEAD,
            f"It is DEAD since {_time(facts.last_attempt_at)} after {_times(facts.attempts)}: "
            f"{facts.error or 'no error was stored'}. {key}",
            since=facts.last_attempt_at,
            attempts=facts.attempts,
            error=facts.error,
            blocks=facts.blocks_its_key,
        )


def _held(facts: Facts) -> Iterator[Reason]:
    for pause in facts.pauses:
        everything = pause.topic is None and pause.tenant_id is None
        if not everything and facts.topic != pause.topic and facts.tenant_id != pause.tenant_id:
            continue
        what = "Everything" if everything else f"Topic {pause.topic!r}"
        if pause.tenant_id is not None:
            what = f"Tenant {pause.tenant_id!r}"
        why = f" ({pause.reason})" if pause.reason else ""
        yield _reason(
            ReasonKind.PAUSED,
            f"{what} is paused since {_time(pause.since)}{why}.",
            topic=pause.topic,
            tenant_id=pause.tenant_id,
            since=pause.since,
            reason=pause.reason,
        )
    if facts.is_scheduled and (facts.available_in or 0.0) > 0:
        yield _reason(
            ReasonKind.SCHEDULED,
            f"It is not due before {_time(facts.available_at)}.",
            at=facts.available_at,
        )
    if facts.blocker is not None:
        other = facts.blocker
        yield _reason(
            ReasonKind.BLOCKED,
            f"Its key {facts.key!r} is blocked behind event {other.event_id}, which is DEAD since "
            f"{_time(other.since)}: {other.error or 'no error was stored'}.",
            key=facts.key,
            event_id=other.event_id,
            since=other.since,
            error=other.error,
        )


def _owned(facts: Facts) -> Iterator[Reason]:
    """Say what is wrong with whoever should send it."""
    alive = [w for w in facts.workers if w.is_alive and _covers(w.scope, facts)]
    held = [lease for lease in facts.leases if lease.is_held and _covers(lease.scope, facts)]
    if held:
        lease = held[0]
        owner = next((w for w in facts.workers if w.id == lease.owner), None)
        if owner is None or not owner.is_alive:
            since = None if owner is None else owner.heartbeat_at
            yield _reason(
                ReasonKind.OWNER_SILENT,
                f"Partition {facts.partition} belongs to {lease.owner}, last heard of at "
                f"{_time(since)}; another projector may take it at {_time(lease.expires_at)}.",
                owner=lease.owner,
                partition=facts.partition,
                heartbeat_at=since,
                expires_at=lease.expires_at,
            )
    elif alive:
        yield _reason(
            ReasonKind.NO_OWNER,
            f"Nobody owns partition {facts.partition} at the moment; a projector that runs will "
            "claim it"
            + (f" ({alive[0].id} waits for {alive[0].waiting_for})" if alive[0].waiting_for else "")
            + ".",
            partition=facts.partition,
            projectors=len(alive),
        )
    else:
        last = max((w.heartbeat_at for w in facts.workers), default=None)
        yield _reason(
            ReasonKind.NO_PROJECTOR,
            "No projector runs for this tenant"
            + (f"; the last heartbeat of any was at {_time(last)}." if last else "."),
            last_heartbeat_at=last,
        )


def _trouble(facts: Facts) -> Iterator[Reason]:
    owner = _owner(facts)
    for breaker in owner.breakers if owner is not None else ():
        if breaker.topic in (None, facts.topic):
            what = "the broker" if breaker.topic is None else f"topic {breaker.topic!r}"
            yield _reason(
                ReasonKind.BREAKER,
                f"The breaker of {what} is open since {_time(breaker.since)}: {breaker.error}.",
                topic=breaker.topic,
                since=breaker.since,
                error=breaker.error,
            )
    if facts.ahead is not None:
        other = facts.ahead
        yield _reason(
            ReasonKind.BEHIND,
            f"Event {other.event_id} of the same key comes first; it is {other.status}"
            + (f" ({other.error})" if other.error else "")
            + ".",
            event_id=other.event_id,
            status=str(other.status),
            error=other.error,
        )
    if facts.attempts and (facts.retry_in or 0.0) > 0:
        yield _reason(
            ReasonKind.RETRY,
            f"Attempt {facts.attempts} failed ({facts.error}); the next one is due at "
            f"{_time(facts.retry_at)}.",
            attempts=facts.attempts,
            at=facts.retry_at,
            error=facts.error,
        )


def _moving(facts: Facts) -> Reason:
    owner = _owner(facts)
    name = owner.id if owner is not None else "nobody"
    data = {
        "owner": name,
        "partition": facts.partition,
        "heartbeat_at": None if owner is None else owner.heartbeat_at,
    }
    heard = _time(None if owner is None else owner.heartbeat_at)
    if facts.status is OutboxStatus.PUBLISHING:
        text = (
            f"{name} is publishing it since {_time(facts.last_attempt_at)} (heard of at {heard})."
        )
        return _reason(ReasonKind.IN_FLIGHT, text, **data)
    text = f"It is due, and {name}, heard of at {heard}, will send it next."
    return _reason(ReasonKind.DUE, text, **data)


def _owner(facts: Facts) -> Worker | None:
    owners = {x.owner for x in facts.leases if x.is_held and _covers(x.scope, facts)}
    return next((worker for worker in facts.workers if worker.id in owners), None)


def _covers(scope: str, facts: Facts) -> bool:
    return scope in (_ALL_TENANTS, facts.tenant_id)


def _time(moment: datetime | None) -> str:
    if moment is None:
        return "an unknown time"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _reason(kind: ReasonKind, sentence: str, **data: Any) -> Reason:
    plain = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in data.items()}
    return Reason(kind=kind, sentence=sentence, data=plain)
