"""The operator's side of the tables: stores that own their transactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
    from semel.states import InboxStats, InboxStatus, OutboxStats, OutboxStatus, Pause


class OutboxStore(Protocol):
    """The operator's side of the outbox table."""

    async def get(self, event_id: str) -> OutboxRecord | None:
        """Return the row, or None."""

    async def search(
        self,
        *,
        status: OutboxStatus | None = None,
        topic: str | None = None,
        tenant_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[OutboxRecord]:
        """Newest first; page with *before* = the last row's `sequence`."""

    async def stats(self, *, tenant_id: str | None = None) -> OutboxStats:
        """Counts by status and the age of the oldest unsent row."""

    async def requeue(self, event_ids: Sequence[str]) -> int:
        """DEAD to NEW with no attempts: sent again, and then what waited behind it, in order.

        Rows in other states are left alone. Two operators requeue a row once.
        """

    async def release(self, event_ids: Sequence[str]) -> int:
        """Leave the rows DEAD, but let their keys go on without them."""

    async def drop(self, event_ids: Sequence[str]) -> int:
        """Delete DEAD rows for good; their keys go on."""

    async def pause(
        self, *, topic: str | None = None, tenant_id: str | None = None, reason: str | None = None
    ) -> None:
        """Hold back everything, one topic or one tenant, until resumed; survives restarts."""

    async def resume(self, *, topic: str | None = None, tenant_id: str | None = None) -> bool:
        """End a pause; False if there was none."""

    async def pauses(self) -> Sequence[Pause]:
        """List what is paused."""

    async def cleanup(
        self, *, older_than: timedelta, tenant_id: str | None = None, batch_size: int = 10_000
    ) -> int:
        """Delete rows SENT before that, in transactions of at most *batch_size* rows.

        Rows in other states are never deleted.
        """


class InboxStore(Protocol):
    """The operator's side of the inbox table."""

    async def stats(self) -> Sequence[InboxStats]:
        """Per consumer: how many records by status, and the oldest of them."""

    async def search(
        self,
        *,
        consumer_name: str | None = None,
        tenant_id: str | None = None,
        status: InboxStatus | None = None,
        limit: int = 50,
    ) -> Sequence[InboxRecord]:
        """Newest first."""

    async def forget(
        self, message_id: str, *, consumer_name: str, tenant_id: str = "default"
    ) -> bool:
        """Allow the message to be processed again; False if it was not there."""

    async def cleanup(
        self,
        *,
        older_than: timedelta,
        consumer_name: str | None = None,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
    ) -> int:
        """Delete PROCESSED records older than that, in transactions of at most *batch_size*."""
