"""What the projector needs of a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semel.envelope import MessageEnvelope
from semel.states import OutboxStatus, Pause

ALL_TENANTS = "*"

#: Tenant and order key: what stays in order.
Key = tuple[str, str]


class Entry:
    """One outbox row on its way to the broker."""

    __slots__ = (
        "attempts",
        "due_at",
        "envelope",
        "key",
        "partition",
        "sequence",
        "status",
        "wait",
    )

    def __init__(  # noqa: PLR0917  made for every row
        self,
        sequence: int,
        partition: int,
        status: str,
        attempts: int,
        wait: float | None,
        key: Key | None,
        envelope: MessageEnvelope,
        due_at: Any = None,
    ) -> None:
        self.sequence = sequence
        self.partition = partition
        self.status = status
        self.attempts = attempts
        self.wait = wait
        self.key = key
        self.envelope = envelope
        #: Since when it could have been sent: its commit, or the time it was scheduled for.
        self.due_at = due_at

    def __repr__(self) -> str:
        return f"Entry({self.sequence}, {self.envelope.event_id!r}, {self.status})"


@dataclass(frozen=True, slots=True)
class Read:
    """Which part of a partition's hot lane to read."""

    partition: int
    floor: int
    limit: int
    known: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What to store about an attempt that the broker rejected."""

    entry: Entry
    attempts: int
    error: str
    retry_in: float | None
    blocks: bool = False
    dead_letter: Mapping[str, Any] | None = None

    @property
    def status(self) -> OutboxStatus:
        """FAILED while it will be tried again, else DEAD."""
        return OutboxStatus.DEAD if self.retry_in is None else OutboxStatus.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A running projector, as others see it."""

    id: str
    scope: str
    lease_seconds: float
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a projector stands after a heartbeat."""

    leases: Mapping[int, int]
    instances: int
    conflict: str | None
    pauses: Sequence[Pause]
    operations: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition that is ours now, and whether its last owner died with it."""

    partition: int
    epoch: int
    from_dead_owner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Which keys are blocked by a DEAD event, and how many rows plain SQL brought back."""

    blocked: Collection[Key]
    revived: int = 0


class RelayStore(Protocol):
    """The projector's side of the outbox tables.

    Every method is a transaction of its own, at READ COMMITTED; none stays open.
    Only the database's clock decides whether a lease has expired.
    """

    async def heartbeat(self, instance: Instance) -> Standing:
        """Register the instance, renew all its leases with one statement, tell how it stands.

        Its detail is stored, for others to see.
        """

    async def claim(self, instance: Instance, limit: int) -> Sequence[Claim]:
        """Take up to *limit* free or expired partitions; each claim raises the epoch.

        Two instances never hold a partition at once. Nothing is claimed while an overlapping
        scope holds a lease.
        """

    async def release(self, instance: Instance, partitions: Collection[int]) -> None:
        """Give partitions back, for others to claim at once."""

    async def retire(self, instance: Instance) -> None:
        """Give everything back and strike the instance off."""

    async def fetch(
        self,
        reads: Sequence[Read],
        *,
        tenant_id: str | None = None,
        skip_topics: Collection[str] = (),
        skip_tenants: Collection[str] = (),
    ) -> Sequence[Entry]:
        """Return unsent rows of the lanes above their floors, lowest first, due or not.

        Rows listed as known are left out, and rows of skipped topics and tenants.
        """

    async def busy(self, partitions: Collection[int]) -> Collection[int]:
        """Return those partitions for which a writer may hold a number that is not visible yet."""

    async def survey(self, partitions: Collection[int]) -> Survey:
        """Return blocked keys; DEAD rows that plain SQL made NEW become hot again."""

    async def promote(
        self, partitions: Collection[int], *, tenant_id: str | None = None
    ) -> tuple[Mapping[int, int], float | None]:
        """Move scheduled rows that are due to the hot lane.

        Returns the lowest number moved by partition, and in how many seconds the next is due.
        """

    async def acknowledge(self, sequences: Sequence[int], *, keep: bool) -> int:
        """Mark rows SENT, or delete them; one statement. A lost lease does not matter here."""

    async def begin(
        self,
        instance: Instance,
        entries: Sequence[Entry],
        *,
        count: bool = False,
        retry_in: float = 0.0,
    ) -> None:
        """Write PUBLISHING over NEW or FAILED.

        With *count* the attempt is counted beforehand: should the process die of it, the next
        owner waits for *retry_in* seconds.
        """

    async def fail(
        self, instance: Instance, epochs: Mapping[int, int], failures: Sequence[Failure]
    ) -> Collection[int]:
        """Store FAILED and DEAD; only for partitions that are still held under their epoch.

        Returns the numbers that were written; a SENT row is left alone.
        """

    async def park(
        self, instance: Instance, epochs: Mapping[int, int], sequences: Collection[int]
    ) -> None:
        """Move rows behind a blocked key out of the hot lane."""

    async def unpark(
        self,
        partitions: Collection[int],
        *,
        blocked: Collection[Key],
        tenant_id: str | None = None,
    ) -> int:
        """Move parked rows back to the hot lane, but for those of blocked keys."""

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* soon after commits of events, from any thread; return the unsubscriber."""

    async def close(self) -> None:
        """Close connections that the relay keeps."""
