"""The seams of semel. A docstring here is a contract: each sentence has a test.

Objects bound to a transaction (`Outbox`, `Inbox`) never commit.
Objects named `...Store` own their transactions and may be called from anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from semel.aggregate import HasEvents
    from semel.envelope import MessageEnvelope
    from semel.errors import PublishError
    from semel.observer import Operation
    from semel.relay import RelayStore
    from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
    from semel.states import (
        Admission,
        InboxStats,
        InboxStatus,
        OutboxStats,
        OutboxStatus,
        Pause,
        Receipt,
    )
    from semel.wire import WireMessage


class Clock(Protocol):
    """Time of this process. Leases and due times are decided by the database's clock."""

    def now(self) -> datetime:
        """Return the wall clock, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""


class Serializer(Protocol):
    """Payload to bytes and back."""

    content_type: str

    def dumps(self, payload: Any) -> bytes:
        """Raise `SerializationError` if *payload* cannot be represented."""

    def loads(self, data: bytes) -> Any:
        """Raise `SerializationError` if *data* is not of this format."""


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

        A message that is not PROCESSED is RECEIVED afterwards; one that was DEAD or PARKED is
        being replayed and starts from zero.
        """

    async def bury(self, letter: MessageEnvelope) -> None:
        """Add a dead letter to the outbox, however large it is."""

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
        *cause* gives outgoing messages their correlation and causation ids.
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


@runtime_checkable
class Delivery(Protocol):
    """A message that the broker handed over; acked or nacked exactly once."""

    @property
    def wire(self) -> WireMessage:
        """The bytes and headers. Decoding is the consumer's task and may fail there."""

    @property
    def attempt(self) -> int:
        """1 for a first delivery, more for a redelivery as far as the broker tells."""

    async def ack(self) -> None:
        """Never deliver this again to this group."""

    async def nack(self, *, delay: float = 0.0) -> None:
        """Deliver this again, not before *delay* seconds where the broker can wait."""


class Subscription(Protocol):
    """Deliveries of one topic for one group."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliver messages of one key in order; ends after `close()`."""

    def is_connected(self) -> bool:
        """Tell whether the broker is connected and may deliver."""

    async def lag(self) -> int | None:
        """Return how many messages wait for this group; None where the broker cannot tell."""

    async def close(self) -> None:
        """Stop; deliveries that were not acked go back to the broker. Idempotent."""


class MessageBus(Protocol):
    """A broker."""

    async def start(self) -> None:
        """Connect. Idempotent."""

    async def close(self) -> None:
        """Flush and disconnect, closing its subscriptions. Idempotent."""

    async def ping(self) -> None:
        """Raise `BusError` if the broker does not answer."""

    async def publish(self, message: MessageEnvelope) -> None:
        """Return once the broker has durably accepted *message*; else raise `PublishError`."""

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        """Publish; the result at index i belongs to message i, None means confirmed.

        Order is kept among messages with the same order key. After a failure no later message
        of that key is sent, and it carries the same error.
        An exception that escapes means trouble with the destination, outcomes unknown.
        """

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Subscription:
        """Members of one group share the topic's messages; every group gets them all."""


class Observer(Protocol):
    """Metrics and traces. Must not block, must not raise."""

    def observe(self, operation: Operation) -> AbstractContextManager[None]:
        """Surround an operation; its `outcome` is read at exit."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def record(self, name: str, value: float, **labels: str) -> None:
        """Add one observation, in base units, to a distribution."""

    def inject(self, metadata: MutableMapping[str, str]) -> None:
        """Add the current trace context to an outgoing message."""
