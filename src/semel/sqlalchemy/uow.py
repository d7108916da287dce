"""One transaction: session, outbox, inbox and the aggregates whose events it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from semel.aggregate import HasEvents
from semel.envelope import MessageEnvelope, check_name, check_tenant
from semel.errors import ConfigurationError, NoTransactionError, TransactionMisuseError
from semel.protocols import Observer, Serializer
from semel.sqlalchemy.buffer import LENT, has_flushed, join
from semel.sqlalchemy.emitters import Tracked, emit, has_events
from semel.sqlalchemy.inbox import SqlAlchemyInbox
from semel.sqlalchemy.outbox import MAX_PAYLOAD_BYTES, SqlAlchemyOutbox
from semel.sqlalchemy.sealing import Seal
from semel.sqlalchemy.tenants import use_tenant

T = TypeVar("T")
SessionFactory = async_sessionmaker[AsyncSession] | Callable[[], AsyncSession]


class SQLAlchemyUnitOfWork:
    """A transaction that ends with `commit()`, or is rolled back at the end of the block.

    With *session* it joins that session's transaction and leaves the commit to its owner.
    """

    def __init__(
        self,
        session_factory: SessionFactory | None = None,
        *,
        tenant_id: str = "default",
        consumer_name: str = "default",
        cause: MessageEnvelope | None = None,
        session: AsyncSession | None = None,
        serializer: Serializer | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        unordered_topics: Sequence[str] = (),
        observer: Observer | None = None,
        row_level_security: bool = False,
    ) -> None:
        if (session_factory is None) == (session is None):
            raise ConfigurationError("a unit of work needs a session_factory, or a session to join")
        self.tenant_id = check_tenant(tenant_id)
        self.consumer_name = check_name("consumer_name", consumer_name)
        self.cause = cause
        self._factory = session_factory
        self._joined = session
        self._session: AsyncSession | None = None
        self._outbox: SqlAlchemyOutbox | None = None
        self._inbox: SqlAlchemyInbox | None = None
        self._seal: Seal | None = None
        self._tracked = Tracked()
        self._serializer = serializer
        self._limit = max_payload_bytes
        self._unordered = unordered_topics
        self._observer = observer
        self._secures_rows = row_level_security

    @property
    def session(self) -> AsyncSession:
        """The session whose transaction this is."""
        return self._begun(self._session)

    @property
    def outbox(self) -> SqlAlchemyOutbox:
        """Adds events to this transaction."""
        return self._begun(self._outbox)

    @property
    def inbox(self) -> SqlAlchemyInbox:
        """Remembers processed messages in this transaction."""
        return self._begun(self._inbox)

    def _begun(self, value: T | None) -> T:
        if value is None:
            raise NoTransactionError("enter the unit of work first: `async with uow: ...`")
        return value

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise NoTransactionError("this unit of work is in use: make another one")
        session = self._joined if self._joined is not None else self._factory()  # type: ignore[misc]
        if self._secures_rows:
            await session.run_sync(use_tenant, self.tenant_id)
        self._session = session
        self._outbox = SqlAlchemyOutbox(
            session,
            self.tenant_id,
            serializer=self._serializer,
            max_payload_bytes=self._limit,
            unordered_topics=self._unordered,
            cause=self.cause,
            consumer_name=self.consumer_name,
            observer=self._observer,
        )
        self._inbox = SqlAlchemyInbox(session, self.tenant_id, consumer_name=self.consumer_name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session, self._session = self.session, None
        self._outbox = self._inbox = None
        kept = self._seal is not None and self._seal.sealed
        if self._seal is not None:
            self._seal.left, self._seal = True, None
        try:
            if not kept and self._joined is None and has_flushed(session.sync_session):
                # Closing alone would leave new objects as if they were stored.
                await session.rollback()
        finally:
            self._tracked.clear()
            self._tracked.leave(session.sync_session)
            if not kept and self._joined is None:
                await session.close()

    def repository(self, entity: type[T]) -> Repository[T]:
        """Return the repository of one kind of entity, in this transaction."""
        return Repository(self, entity)

    def track(self, aggregate: HasEvents) -> None:
        """Collect the aggregate's events at commit; tracking twice is tracking once."""
        if not has_events(aggregate):
            raise ConfigurationError(
                f"{type(aggregate).__name__} has no events: derive it from AggregateRoot"
            )
        self._tracked.follow(self.session.sync_session)
        if not any(known is aggregate for known in self._tracked):
            self._tracked.append(aggregate)

    async def collect(self) -> None:
        """Flush, and add the tracked aggregates' events to the outbox."""
        if not self._tracked:
            return
        await self._flush()
        buffer = await self.session.run_sync(join)
        for aggregate in self._tracked:
            emit(aggregate, self.outbox, buffer, final=True)

    async def commit(self) -> None:
        """Write the tracked aggregates' events to the outbox and commit everything."""
        if self.session.sync_session.info.get(LENT):
            raise TransactionMisuseError(
                "this unit of work is lent to the handler: semel commits it together with a "
                "row of its own. Remove the commit() from the handler"
            )
        seal = self._seal if self._seal is not None and self._seal.needed() else None
        if seal is not None:
            seal.check()
        await self.collect()
        if seal is not None:
            await self._flush()
            await seal.close()
        elif self._joined is None:
            await self.session.commit()
        else:
            await self._flush()

    async def _flush(self) -> None:
        sync = self.session.sync_session
        # A flush of nothing does nothing, but takes a switch to another greenlet to find out.
        if sync.new or sync.dirty or sync.deleted:
            await self.session.flush()

    async def rollback(self) -> None:
        """Undo everything."""
        await self.session.rollback()
        if self._seal is not None:
            self._seal.reopen()

    def seal(self, needed: Callable[[], bool]) -> Seal:
        """Let somebody else end this transaction.

        While *needed* says so, `commit()` flushes and seals: nothing is durable, and leaving the
        block neither rolls back nor closes. A second `commit()` raises.
        """
        if self._joined is not None:
            raise ConfigurationError(
                "this unit of work joins another transaction, whose owner commits it: use the "
                "owner's unit of work in a request with an idempotency key"
            )
        self._seal = Seal(self.session, needed)
        return self._seal


class Repository(Generic[T]):
    """Entities of one kind, in one transaction."""

    def __init__(self, uow: SQLAlchemyUnitOfWork, entity: type[T]) -> None:
        self._uow = uow
        self._entity = entity

    async def get(self, identity: Any) -> T | None:
        """Return the entity with this primary key, or None; an aggregate found is tracked."""
        found = await self._uow.session.get(self._entity, identity)
        if has_events(found):
            self._uow.track(found)
        return found

    async def list(self, **equals: Any) -> list[T]:
        """Return the entities whose attributes have these values."""
        result = await self._uow.session.scalars(select(self._entity).filter_by(**equals))
        found = list(result)
        for entity in found:
            if has_events(entity):
                self._uow.track(entity)
        return found

    async def save(self, entity: T) -> T:
        """Add the entity to the transaction; an aggregate is tracked."""
        self._uow.session.add(entity)
        if has_events(entity):
            self._uow.track(entity)
        return entity

    async def delete(self, entity: T) -> None:
        """Delete the entity; events of an aggregate are still collected."""
        if has_events(entity):
            self._uow.track(entity)
        await self._uow.session.delete(entity)
