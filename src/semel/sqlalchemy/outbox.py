"""The outbox inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import manager_of_class
from sqlalchemy.util.concurrency import in_greenlet

from semel.clock import SystemClock
from semel.context import carried, request_of
from semel.envelope import MessageEnvelope, check_tenant, new_event_id
from semel.errors import ConfigurationError, InvalidMessageError, NoTransactionError
from semel.observer import NullObserver
from semel.protocols import Clock, Observer, Serializer
from semel.serializers import JsonSerializer
from semel.sqlalchemy.buffer import Buffer, join, linked
from semel.sqlalchemy.rows import NewRow, new_row
from semel.sqlalchemy.tables import OutboxRecord
from semel.states import OutboxStatus

MAX_PAYLOAD_BYTES = 256 * 1024
_manager = manager_of_class(OutboxRecord)
_EMITTED = uuid5(NAMESPACE_URL, "urn:semel:emitted")


class SqlAlchemyOutbox:
    """Adds events to the transaction of *session*; they exist if and only if it commits.

    Events are checked and encoded by `add`, and written with one statement as the last act
    before the commit. *session* is an `AsyncSession`, or a `Session` with `add_nowait`.
    With *cause*, events get its correlation id, and ids that a second execution would give again:
    what is in the outbox under such an id is not written a second time.
    """

    def __init__(
        self,
        session: AsyncSession | Session,
        tenant_id: str = "default",
        *,
        serializer: Serializer | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        unordered_topics: Collection[str] = (),
        cause: MessageEnvelope | None = None,
        consumer_name: str = "default",
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(session, AsyncSession):
            self._session: Session = session.sync_session
        elif isinstance(session, Session):
            self._session = session
        else:
            raise ConfigurationError(
                f"SqlAlchemyOutbox needs an AsyncSession or a Session, not {type(session).__name__}"
            )
        self._given = session
        self.tenant_id = check_tenant(tenant_id)
        self._serializer = serializer or JsonSerializer()
        self._limit = max_payload_bytes
        self._unordered = frozenset(unordered_topics)
        self._cause = cause
        self._consumer_name = consumer_name
        self._observer = observer or NullObserver()
        self._clock = clock or SystemClock()
        self._ordinal = 0

    async def add(self, topic: str, payload: Any, **options: Any) -> OutboxRecord:
        """Add one event; see `add_nowait` for the options."""
        await self._join()
        return self.add_nowait(topic, payload, **options)

    def add_nowait(
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
        """Add one event; for sync sessions.

        Events with the same *key* (else the aggregate, else *routing_key*) are published in the
        order of their commits. The event is not sent before *available_at*.
        """
        given = event_type if event_type is not None else topic
        derived = event_id is None and self._cause is not None
        if event_id is None:
            event_id = self._new_id(topic, given, key)
        envelope = MessageEnvelope(
            topic=topic,
            payload=payload,
            event_type=given,
            event_id=event_id,
            tenant_id=self.tenant_id,
            key=key,
            aggregate_id=aggregate_id,
            aggregate_type=aggregate_type,
            routing_key=routing_key,
            schema_id=schema_id,
            schema_version=schema_version,
            occurred_at=occurred_at if occurred_at is not None else self._clock.now(),
            metadata=self.headers(metadata, topic=topic, event_id=event_id),
        )
        row = self.row(envelope, available_at)
        self._buffer().append(row, derived=derived)
        return _record(row, envelope, self._clock.now())

    async def put(self, *envelopes: MessageEnvelope) -> None:
        """Add ready-made envelopes, in the given order."""
        if envelopes:
            await self._join()
            self.put_nowait(*envelopes)

    def put_nowait(self, *envelopes: MessageEnvelope) -> None:
        """Add ready-made envelopes, in the given order; for sync sessions."""
        rows = [self.row(envelope) for envelope in envelopes]
        if rows:
            buffer = self._buffer()
            for row in rows:
                buffer.append(row)

    def row(self, envelope: MessageEnvelope, available_at: datetime | None = None) -> NewRow:
        """Check and encode *envelope* as this outbox would write it."""
        if available_at is not None:
            if not isinstance(available_at, datetime) or available_at.tzinfo is None:
                raise InvalidMessageError(
                    "available_at must be a datetime with a timezone, such as datetime.now(UTC)"
                )
            try:
                available_at = available_at.astimezone(UTC)
            except OverflowError:
                raise InvalidMessageError(
                    "available_at is not within the years 1 to 9999"
                ) from None
        return new_row(
            envelope,
            serializer=self._serializer,
            limit=self._limit,
            available_at=available_at,
            ordered=envelope.topic not in self._unordered,
        )

    def _buffer(self) -> Buffer:
        buffer = linked(self._session)
        if buffer is not None:
            return buffer
        if self._given is not self._session and not in_greenlet():
            raise NoTransactionError(
                "this AsyncSession has no connection yet: use `await outbox.add(...)`"
            )
        return join(self._session)

    async def _join(self) -> None:
        if linked(self._session) is None and isinstance(self._given, AsyncSession):
            await self._given.run_sync(join)

    def headers(
        self, given: Mapping[str, str] | None = None, *, topic: str = "", event_id: str = ""
    ) -> dict[str, str]:
        """Return the metadata of a new event: what caused it, the trace, and what is given."""
        metadata: dict[str, str] = {}
        if self._cause is not None:
            metadata["correlation_id"] = self._cause.correlation_id or self._cause.event_id
            metadata["causation_id"] = self._cause.event_id
        else:
            request = request_of(self.tenant_id)
            if request is not None:
                metadata["causation_id"] = request
            metadata.update(carried())
        if given is not None and not isinstance(given, Mapping):
            raise InvalidMessageError(
                f"metadata must be a mapping of str to str, not {type(given).__name__}"
            )
        if given is not None and "traceparent" in given:
            metadata.pop("tracestate", None)
        else:
            self._observer.inject(metadata, topic=topic, event_id=event_id)
        metadata.update(given or {})
        return metadata

    def _new_id(self, topic: str, event_type: str, key: str | None) -> str:
        if self._cause is None:
            return new_event_id()
        self._ordinal += 1
        parts = (
            self.tenant_id,
            self._consumer_name,
            self._cause.event_id,
            topic,
            event_type,
            key or "",
            str(self._ordinal),
        )
        return str(uuid5(_EMITTED, "\x1f".join(parts)))


def _record(row: NewRow, envelope: MessageEnvelope, now: datetime) -> OutboxRecord:
    # As SQLAlchemy makes one of a row: by its constructor, and attribute by attribute with their
    # history of changes, it takes ten times as long.
    record: OutboxRecord = _manager.new_instance()
    record.__dict__.update(
        id=row.id,
        tenant_id=row.tenant_id,
        aggregate_id=row.aggregate_id,
        aggregate_type=row.aggregate_type,
        topic=row.topic,
        event_type=row.event_type,
        order_key=row.order_key,
        routing_key=row.routing_key,
        occurred_at=row.occurred_at,
        payload=envelope.__dict__.get("payload"),
        payload_bytes=row.payload_bytes,
        content_type=row.content_type,
        event_metadata=dict(envelope.metadata),
        schema_id=row.schema_id,
        schema_version=row.schema_version,
        status=OutboxStatus.NEW.value,
        retry_count=0,
        created_at=now,
        available_at=row.available_at,
    )
    return record
