"""One database: its stores, and the transactions on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

from sqlalchemy import URL, Connection, Dialect, make_url, select
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InvalidRequestError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, StorageError, describe, missing_extra
from semel.protocols import Observer, Serializer, UnitOfWork
from semel.sqlalchemy import bus_tables as _bus_tables  # noqa: F401  part of the metadata
from semel.sqlalchemy.audit import SqlAlchemyAuditStore
from semel.sqlalchemy.buffer import LENT
from semel.sqlalchemy.creation import create_schema, examine
from semel.sqlalchemy.dialects import DRIVER_EXTRAS, URL_HINT, Database, database_of
from semel.sqlalchemy.idempotency import SqlAlchemyIdempotencyStore
from semel.sqlalchemy.inbox import SqlAlchemyInboxGate
from semel.sqlalchemy.inbox_store import SqlAlchemyInboxStore
from semel.sqlalchemy.outbox import MAX_PAYLOAD_BYTES
from semel.sqlalchemy.outbox_store import SqlAlchemyOutboxStore
from semel.sqlalchemy.relay import SqlAlchemyRelayStore
from semel.sqlalchemy.schema import check_schema, check_version
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork
from semel.sqlalchemy.workers import SqlAlchemyWorkerStore

#: What a database that refuses or does not answer may raise.
DATABASE_ERRORS: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)


class SqlAlchemyStorage:
    """The service's own database.

    *database* is a URL, an `AsyncEngine` or an `async_sessionmaker`; only an engine that was made
    here is disposed of here.
    """

    def __init__(
        self,
        database: str | URL | AsyncEngine | async_sessionmaker[AsyncSession],
        *,
        serializer: Serializer | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        unordered_topics: Sequence[str] = (),
        observer: Observer | None = None,
        notify: bool = True,
        row_level_security: bool = False,
        **engine_options: Any,
    ) -> None:
        self._owns_engine = isinstance(database, str | URL)
        if isinstance(database, str | URL):
            self.engine = _make_engine(database, engine_options)
        elif isinstance(database, AsyncEngine):
            self.engine = database
        elif isinstance(database, async_sessionmaker):
            self.engine = _engine_of(database)
        else:
            raise ConfigurationError(
                "SqlAlchemyStorage needs a URL, an AsyncEngine or an async_sessionmaker, not "
                f"{type(database).__name__}"
            )
        self._database.check_url(self.engine.url)
        self._database.prepare_engine(self.engine.sync_engine)
        self.session_factory = (
            database
            if isinstance(database, async_sessionmaker)
            else async_sessionmaker(self.engine, expire_on_commit=False)
        )
        self.serializer = serializer
        self._limit = max_payload_bytes
        self._unordered = tuple(unordered_topics)
        self._secures_rows = row_level_security
        if row_level_security and not self._database.separates_tenants:
            raise ConfigurationError(
                f"{self.engine.dialect.name} has no row-level security: only postgresql does"
            )
        self.observer = observer
        self._reader = self.engine.execution_options(semel_read_only=True)
        self.outbox = SqlAlchemyOutboxStore(self.engine, max_payload_bytes=max_payload_bytes)
        self.inbox = SqlAlchemyInboxStore(self.engine)
        self.workers = SqlAlchemyWorkerStore(self.engine)
        self.audit = SqlAlchemyAuditStore(self.engine)
        self.idempotency = SqlAlchemyIdempotencyStore(self.engine)
        self.relay = SqlAlchemyRelayStore(self.engine, notify=notify)

    @property
    def _database(self) -> Database:
        return database_of(self.engine.dialect)

    def unit_of_work(
        self,
        *,
        tenant_id: str = "default",
        consumer_name: str = "default",
        cause: MessageEnvelope | None = None,
        session: AsyncSession | None = None,
    ) -> SQLAlchemyUnitOfWork:
        """Return a fresh unit of work, or one that joins *session*'s transaction."""
        return SQLAlchemyUnitOfWork(
            None if session is not None else self.session_factory,
            tenant_id=tenant_id,
            consumer_name=consumer_name,
            cause=cause,
            session=session,
            serializer=self.serializer,
            max_payload_bytes=self._limit,
            unordered_topics=self._unordered,
            observer=self.observer,
            row_level_security=self._secures_rows,
        )

    def gate(self, uow: UnitOfWork) -> SqlAlchemyInboxGate:
        """Return the inbox gate inside *uow*'s transaction."""
        return SqlAlchemyInboxGate(uow.session)

    @contextmanager
    def lend(self, uow: UnitOfWork) -> Iterator[None]:
        """While inside, commits of the unit of work's session raise."""
        info = uow.session.sync_session.info
        before = info.get(LENT, False)
        info[LENT] = True
        try:
            yield
        finally:
            info[LENT] = before

    def is_transient(self, error: BaseException) -> bool:
        """Tell errors after which the whole transaction may be tried again."""
        return self._database.is_transient(error)

    async def initialize(self) -> None:
        """Create the tables that do not exist: for tests, demos and first steps."""
        async with self.engine.begin() as connection:
            await connection.run_sync(create_schema)

    async def upgrade(self) -> None:
        """Create the tables, or bring those of an earlier release up to date."""
        from semel.sqlalchemy.migrations import upgrade  # noqa: PLC0415  needs an extra

        engine = self.engine.execution_options(**self._database.own_transaction_options)
        async with engine.begin() as connection:
            await connection.run_sync(upgrade)

    async def ping(self) -> None:
        """Raise `StorageError` if the database does not answer, `SchemaError` for bad tables."""
        await self._ask(check_schema)

    async def check_version(self) -> None:
        """The same, with a look at the tables' version at each call: for probes."""
        await self._ask(check_version)

    async def _ask(self, question: Callable[[Connection], None]) -> None:
        try:
            async with self._reader.connect() as connection:
                await connection.execute(select(1))
                await connection.run_sync(question)
        except DBAPIError as error:
            raise StorageError(f"the database does not answer ({describe(error)})") from None
        except OSError as error:
            raise StorageError(f"the database does not answer ({describe(error)})") from None

    async def check(self) -> None:
        """Raise `SchemaError` for missing, old or damaged tables; look closer than `ping`."""
        await self.ping()
        async with self.engine.connect() as connection:
            await connection.run_sync(examine)

    async def close(self) -> None:
        """Stop what this object runs, and dispose of the engine if it made it."""
        await self.relay.close()
        if self._owns_engine:
            await self.engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _make_engine(database: str | URL, options: dict[str, Any]) -> AsyncEngine:
    try:
        url = make_url(database)
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise ConfigurationError(f"this is no database URL: {URL_HINT}") from None
    try:
        database_of(cast("Dialect", url.get_dialect())).check_url(url)
        return create_async_engine(url, **({"hide_parameters": True} | options))
    except ModuleNotFoundError as error:
        extra = DRIVER_EXTRAS.get(str(error.name))
        if extra is None:
            raise ConfigurationError(
                f"{url.drivername} needs {error.name}, which is not installed: {URL_HINT}"
            ) from error
        raise ConfigurationError(missing_extra(f"the driver {error.name}", extra)) from error
    except NoSuchModuleError:
        raise ConfigurationError(f"SQLAlchemy knows no {url.drivername}: {URL_HINT}") from None
    except InvalidRequestError:
        raise ConfigurationError(f"{url.drivername} is not asynchronous: {URL_HINT}") from None
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"SQLAlchemy refuses this URL, or an option of the engine: {URL_HINT}"
        ) from None


def _engine_of(factory: async_sessionmaker[AsyncSession]) -> AsyncEngine:
    bind = factory.kw.get("bind")
    if not isinstance(bind, AsyncEngine):
        raise ConfigurationError(
            "the async_sessionmaker has no engine: make it with async_sessionmaker(engine)"
        )
    return bind
