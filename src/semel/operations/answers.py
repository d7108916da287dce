"""What operators are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

Row = TypeVar("Row")
Cursor = TypeVar("Cursor")


class Page(list[Row], Generic[Row, Cursor]):
    """Rows, and where to go on: pass `next` as *before*; None means that this is the end.

    A page may be short, even empty, and not the last one: each call looks at a bounded number of
    rows, whether they match or not.
    """

    def __init__(self, rows: Iterable[Row] = (), *, next: Cursor | None = None) -> None:  # noqa: A002  page.next
        super().__init__(rows)
        self.next = next


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; *capped* means: at least so many, counting stopped there."""

    number: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.number}+" if self.capped else str(self.number)


class Verb(StrEnum):
    """What can be done to many outbox rows at once."""

    REQUEUE = "requeue"
    RELEASE = "release"
    DROP = "drop"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a bulk action is, after each batch.

    Rows up to *position* are done; *up_to* is the highest number that was there at the start, so
    `(position - first) / (up_to - first)` is a fair guess of the share. To go on later, pass
    *position* as `after`.
    """

    verb: Verb
    changed: int
    batches: int
    first: int
    position: int
    up_to: int
    dry_run: bool = False
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedKey:
    """A key that waits behind a DEAD event."""

    tenant_id: str
    key: str
    event_id: str
    topic: str
    since: datetime | None
    error: str | None
    dead: int
    waiting: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """DEAD events of a topic and type with the same error; `last_id` is the newest of them."""

    topic: str
    event_type: str
    error: str | None
    count: Count
    last_at: datetime | None
    last_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """How the outbox moves: its highest number, and how long the newest sent events took."""

    position: int
    written: int
    latency_p50: float | None
    latency_p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who may publish a partition; `expires_seconds` is by the database's clock."""

    scope: str
    partition: int
    owner: str | None
    epoch: int
    expires_at: datetime | None
    expires_seconds: float | None

    @property
    def is_held(self) -> bool:
        """Whether nobody else may claim it now."""
        return self.owner is not None and (self.expires_seconds or 0.0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """A destination that a projector leaves alone: a topic, or the broker (`topic` is None)."""

    topic: str | None
    since: datetime
    trips: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A running projector, as its last heartbeat told; ages are by the database's clock."""

    id: str
    scope: str
    host: str | None
    pid: int | None
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_seconds: float
    lease_seconds: float | None
    partitions: Sequence[int] = ()
    published: int | None = None
    published_per_second: float | None = None
    failed: int | None = None
    waiting_for: str | None = None
    breakers: Sequence[BreakerState] = field(default=())

    @property
    def is_alive(self) -> bool:
        """Whether its last heartbeat is younger than its lease time."""
        return self.heartbeat_seconds < (self.lease_seconds or 30.0)
