"""The operator's side of the tables: stores that own their transactions.

Reads look at a bounded number of rows, whatever the size of the table. Whatever changes rows takes
an *actor*, and leaves a row in the audit in the same transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from semel.operations import (
        AuditFilter,
        BlockedKey,
        Count,
        DeadGroup,
        InboxFilter,
        Lease,
        OutboxFilter,
        Page,
        Progress,
        Pulse,
        Verb,
        Why,
        Worker,
    )
    from semel.sqlalchemy.tables import AuditRecord, InboxRecord, OutboxRecord
    from semel.states import InboxStats, OutboxStats, Pause

#: Gets the rows that are about to be deleted, as JSON-ready dicts.
Archive = Callable[[Sequence[Mapping[str, Any]]], Awaitable[None] | None]
#: Is told how many rows are deleted so far.
Deleted = Callable[[int], None]


class OutboxStore(Protocol):
    """The operator's side of the outbox table."""

    async def get(self, event_id: str) -> OutboxRecord | None:
        """Return the row, or None."""

    async def search(
        self, where: OutboxFilter | None = None, *, before: int | None = None, limit: int = 50
    ) -> Page[OutboxRecord, int]:
        """Newest first, at most 1,000; page on with *before* = the page's `next` until it is None.

        A page may be short although it is not the last: few of the rows it looked at match.
        """

    async def count(self, where: OutboxFilter | None = None, *, cap: int = 10_000) -> Count:
        """Count matching rows, up to *cap*; looks at a bounded number of rows, newest first."""

    async def stats(self, *, tenant_id: str | None = None) -> OutboxStats:
        """Counts by status and the age of the oldest unsent row that is due.

        Figures named in `capped` are at least that: counting stopped.
        """

    async def pulse(self, *, after: int | None = None, tenant_id: str | None = None) -> Pulse:
        """How many rows came after number *after*, and how long the newest took to be sent."""

    async def dead_groups(
        self, *, tenant_id: str | None = None, limit: int = 500
    ) -> Sequence[DeadGroup]:
        """DEAD rows by topic, type and text of the error, the largest groups first.

        Counts are capped where there are more groups than *limit*, or more rows than looked at.
        """

    async def why(self, event_id: str) -> Why | None:
        """Say why the event is where it is: sent, DEAD, or what it waits for; None if unknown."""

    async def blocked_keys(
        self, *, tenant_id: str | None = None, limit: int = 50
    ) -> Sequence[BlockedKey]:
        """List keys behind a DEAD event, those blocked first of all, and how many rows wait."""

    def export(
        self, where: OutboxFilter | None = None, *, payload: bool = False, batch_size: int = 500
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield matching rows as JSON-ready dicts, oldest first, up to the newest at the start.

        Payload and metadata are in it only if *payload*.
        """

    async def requeue(self, event_ids: Sequence[str], *, actor: str = "unknown") -> int:
        """DEAD to NEW with no attempts: sent again, and then what waited behind it, in order.

        Rows in other states are left alone. Two operators requeue a row once.
        """

    async def release(self, event_ids: Sequence[str], *, actor: str = "unknown") -> int:
        """Leave the rows DEAD, but let their keys go on without them."""

    async def drop(self, event_ids: Sequence[str], *, actor: str = "unknown") -> int:
        """Delete DEAD rows for good; their keys go on."""

    def bulk(
        self,
        verb: Verb,
        where: OutboxFilter | None = None,
        *,
        actor: str = "unknown",
        after: int = 0,
        limit: int | None = None,
        rate: float | None = None,
        batch_size: int = 1000,
        dry_run: bool = False,
    ) -> AsyncIterator[Progress]:
        """Requeue, release or drop all DEAD rows that match, or replay all SENT ones.

        Yields after each batch, which is one transaction; whoever stops iterating stops the
        action, and what is done stays done. Only rows numbered up to the highest at the start
        (and above *after*), lowest first: keys keep their order. Stops after *limit* rows; at
        most *rate* rows per second. With *dry_run* it only counts. Several operators at once
        change each row once.

        Replayed events go out again with the same ids, as ordinary events: a row that was sent
        again since the start is left alone.
        """

    async def edit_and_requeue_as_new(
        self, event_id: str, payload: Any, *, actor: str = "unknown"
    ) -> str:
        """Replace a DEAD event by a new one with another payload, at its place; return the new id.

        The new event's metadata names the old one as `edited_from`; the old one stays, DEAD and
        released. Raises `StorageError` if it is not DEAD.
        """

    async def pause(
        self,
        *,
        topic: str | None = None,
        tenant_id: str | None = None,
        reason: str | None = None,
        actor: str = "unknown",
    ) -> None:
        """Hold back everything, one topic or one tenant, until resumed; survives restarts."""

    async def resume(
        self, *, topic: str | None = None, tenant_id: str | None = None, actor: str = "unknown"
    ) -> bool:
        """End a pause; False if there was none."""

    async def pauses(self) -> Sequence[Pause]:
        """List what is paused."""

    async def cleanup(
        self,
        *,
        older_than: timedelta,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
        archive: Archive | None = None,
        progress: Deleted | None = None,
        actor: str = "retention",
    ) -> int:
        """Delete rows SENT before that, in transactions of at most *batch_size* rows.

        Rows in other states are never deleted. *archive* gets every row, with its payload, before
        the transaction that deletes it commits; what it raises keeps the rows. *progress* is told
        after each transaction how many are gone; what it raises ends the clean-up there.
        """


class InboxStore(Protocol):
    """The operator's side of the inbox table."""

    async def get(
        self, message_id: str, *, consumer_name: str, tenant_id: str = "default"
    ) -> InboxRecord | None:
        """Return the record, or None."""

    async def search(
        self, where: InboxFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> Page[InboxRecord, str]:
        """Newest first, at most 1,000; page on with *before* = the page's `next` until it is None.

        A page may be short although it is not the last: few of the records it looked at match.
        """

    async def count(self, where: InboxFilter | None = None, *, cap: int = 10_000) -> Count:
        """Count matching records, up to *cap*; looks at a bounded number of them, newest first."""

    async def stats(self) -> Sequence[InboxStats]:
        """Per consumer: how many records by status, and the oldest of them.

        Of a large table only the newest records are looked at: then `capped` is true.
        """

    async def forget(
        self,
        message_id: str,
        *,
        consumer_name: str,
        tenant_id: str = "default",
        actor: str = "unknown",
    ) -> bool:
        """Allow the message to be processed again; False if it was not there."""

    async def cleanup(
        self,
        *,
        older_than: timedelta,
        consumer_name: str | None = None,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
        archive: Archive | None = None,
        progress: Deleted | None = None,
        actor: str = "retention",
    ) -> int:
        """Delete PROCESSED records older than that, in transactions of at most *batch_size*.

        *archive* gets every record before the transaction that deletes it commits. *progress* is
        told after each transaction how many are gone; what it raises ends the clean-up there.
        """


class WorkerStore(Protocol):
    """Which projectors run, and what they own."""

    async def workers(self) -> Sequence[Worker]:
        """List projectors that were heard of lately, with what their last heartbeat told."""

    async def leases(self) -> Sequence[Lease]:
        """List all leases by scope and partition."""

    async def release_leases(
        self,
        *,
        owner: str | None = None,
        partition: int | None = None,
        scope: str = "*",
        actor: str = "unknown",
    ) -> int:
        """Take leases from *owner*, or the lease of *partition*, and return how many.

        The epoch rises at once, so the owner can write no outcome any more; others may claim the
        partition when the time of the lease is over, because until then the owner may not know.
        """


class AuditStore(Protocol):
    """What operators did."""

    async def search(
        self, where: AuditFilter | None = None, *, before: int | None = None, limit: int = 50
    ) -> Page[AuditRecord, int]:
        """Newest first; page on with *before* = the page's `next` until it is None."""
