"""What lives inside a transaction, and the database that it is on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from semel.aggregate import HasEvents
    from semel.envelope import MessageEnvelope
    from semel.protocols.idempotency import IdempotencyStore
    from semel.protocols.stores import AuditStore, InboxStore, OutboxStore, WorkerStore
    from semel.relay import RelayStore
    from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
    from semel.states import Admission, InboxStatus, Receipt


class Outbox(Protocol):
    """Adds messages to the caller's transaction: they exist if and only if it commits."""

    async def add(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        event_type: str | None = None,
        event_id: str | None = None,
        aggregate_id: str | None = None,
        aggregate_type: str | None = None,
        routing_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        schema_id: str | None = None,
        schema_version: int = 1,
        occurred_at: datetime | None = None,
        available_at: datetime | None = None,
    ) -> OutboxRecord:
        """Add one message; `event_type` defaults to *topic*.

        Bad input raises here, in the caller's transaction.
        The message is not sent before *available_at*.
        """

    async def put(self, *envelopes: MessageEnvelope) -> None:
        """Add ready-made envelopes, in the given order."""


class Inbox(Protocol):
    """Remembers processed messages in the caller's transaction, for one tenant and consumer."""

    async def is_processed(self, message_id: str) -> bool:
        """Tell whether the message was processed. A hint: the insert is the gate."""

    async def mark_processed(
        self,
        message_id: str,
        event_type: str,
        payload: Any | None = None,
        source: str | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> InboxRecord:
        """Insert the record; raise `DuplicateMessageError` if it exists."""

    async def try_mark_processed(
        self,
        message_id: str,
        event_type: str,
        payload: Any | None = None,
        source: str | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> bool:
        """Insert the record if absent; False if it exists.

        While another transaction holds the same id uncommitted, this call waits for its outcome.
        A duplicate leaves the caller's transaction usable.
        """

    async def get_record(self, message_id: str) -> InboxRecord | None:
        """Return the record, or None."""

    async def cleanup_old_records(self, older_than_days: int = 30) -> int:
        """Delete this tenant's and consumer's old PROCESSED records in the caller's transaction."""


class UnitOfWork(Protocol):
    """One transaction. Leaving the block without `commit()` rolls back."""

    tenant_id: str

    @property
    def session(self) -> Any:
        """The session whose transaction this is."""

    @property
    def outbox(self) -> Outbox:
        """Adds messages to this transaction."""

    @property
    def inbox(self) -> Inbox:
        """Remembers processed messages in this transaction."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def track(self, aggregate: HasEvents) -> None:
        """Collect the aggregate's events at commit; tracking twice is tracking once."""

    async def commit(self) -> None:
        """Write the tracked aggregates' events to the outbox and commit everything."""

    async def rollback(self) -> None:
        """Undo everything."""


class InboxGate(Protocol):
    """What the engine needs of the inbox inside a transaction that it lends to a handler."""

    async def admit(self, receipts: Sequence[Receipt]) -> Sequence[Admission]:
        """Insert one row per receipt with one statement; the answer at i belongs to receipt i.

        NEW: the row is ours, run the handler. DUPLICATE: it exists with the same payload.
        CONFLICT: it exists with another payload. A DEAD or PARKED row that is replayed is NEW.
        Concurrent calls with the same ids wait for each other, in one order.
        """

    async def complete(self, receipts: Sequence[Receipt], *, duration_ms: int) -> None:
        """Finish admitted rows; raise `TransactionMisuseError` unless all of them are there."""

    async def settle(
        self, receipt: Receipt, *, status: InboxStatus, attempts: int, reason: str
    ) -> bool:
        """Write the receipt as DEAD or PARKED, over whatever row there is but PROCESSED.

        False, and nothing written, if it is PROCESSED.
        """

    async def attempts(self, receipt: Receipt, *, add: int = 0) -> int:
        """Return the durable number of attempts of a message, after adding *add* to it.

        A message that has no row gets one that is RECEIVED. One that is DEAD or PARKED stays so
        and starts from zero: it is being replayed, or an old delivery of it came late.
        """

    async def bury(self, letter: MessageEnvelope) -> None:
        """Add a dead letter to the outbox, however large it is, unless it is there already."""

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Undo what happens inside if it raises; the transaction around it goes on."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call *callback* once the transaction has committed; never if it is rolled back."""


class Storage(Protocol):
    """One database: its stores, and the transactions on it."""

    @property
    def outbox(self) -> OutboxStore:
        """The operator's side of the outbox."""

    @property
    def inbox(self) -> InboxStore:
        """The operator's side of the inbox."""

    @property
    def idempotency(self) -> IdempotencyStore:
        """The keys of calls that happen once, and their answers."""

    @property
    def workers(self) -> WorkerStore:
        """The projectors that run, and their leases."""

    @property
    def audit(self) -> AuditStore:
        """What operators did."""

    @property
    def relay(self) -> RelayStore:
        """The projector's side of the outbox."""

    def unit_of_work(
        self,
        *,
        tenant_id: str = "default",
        consumer_name: str = "default",
        cause: MessageEnvelope | None = None,
        session: Any | None = None,
    ) -> UnitOfWork:
        """Return a fresh unit of work.

        With *session* it joins that transaction and leaves its commit to the owner.
        *cause* gives outgoing messages their correlation and causation ids, and ids that a second
        execution gives again: what it emitted before stays as it is, and is not emitted again.
        """

    def gate(self, uow: UnitOfWork) -> InboxGate:
        """Return the inbox gate inside *uow*'s transaction."""

    def lend(self, uow: UnitOfWork) -> AbstractContextManager[None]:
        """While inside, `commit()` of the unit of work's session by anybody else raises."""

    def is_transient(self, error: BaseException) -> bool:
        """Tell a deadlock, serialization failure, lock time-out or lost connection from others."""

    async def initialize(self) -> None:
        """Create the tables that do not exist."""

    async def ping(self) -> None:
        """Raise `StorageError` if the database does not answer, `SchemaError` for bad tables."""

    async def close(self) -> None:
        """Dispose of what this object made, and only that."""
