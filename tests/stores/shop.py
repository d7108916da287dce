"""A small shop that writes orders and events, and ways to look at what is durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import (
    Connection,
    Engine,
    ForeignKey,
    Row,
    String,
    create_engine,
    event,
    make_url,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.util import await_only

from semel.aggregate import AggregateRoot
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from tests.services import Database

SYNC_DRIVERS = {
    "sqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgres-psycopg": "postgresql+psycopg",
    "mariadb": "mysql+pymysql",
}
_TABLES = (
    "outbox",
    "outbox_lease",
    "outbox_instance",
    "inbox",
    "idempotency",
    "audit",
    "line",
    "orders",
)
PATIENCE = 20.0


class Base(DeclarativeBase):
    """The service's own tables."""


class Order(AggregateRoot, Base):
    """An aggregate that is an entity."""

    __tablename__ = "orders"
    topic = "orders"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")

    def emit(self, name: str, **payload: Any) -> None:
        self.add_event(payload, event_type=name)


class Line(AggregateRoot, Base):
    """An aggregate whose id the database gives."""

    __tablename__ = "line"
    topic = "lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str | None] = mapped_column(ForeignKey("orders.id"))


async def empty(storage: SqlAlchemyStorage) -> None:
    """Delete all rows; numbers go on."""
    async with storage.engine.begin() as connection:
        for table in _TABLES:
            await connection.execute(text(f"DELETE FROM {table}"))
        await connection.execute(
            text("UPDATE outbox_control SET value = '[]' WHERE name = 'pauses'")
        )


async def rows(storage: SqlAlchemyStorage) -> list[Row[Any]]:
    """Return all outbox rows that are committed, by sequence."""
    async with _reading(storage) as connection:
        table = OutboxRecord.__table__
        return list(await connection.execute(select(table).order_by(table.c.sequence)))


async def types(storage: SqlAlchemyStorage) -> list[str]:
    """Return the types of all committed events, by sequence."""
    return [row.event_type for row in await rows(storage)]


async def orders(storage: SqlAlchemyStorage) -> dict[str, str]:
    """Return the committed orders: status by id."""
    async with _reading(storage) as connection:
        result = await connection.execute(select(Order.__table__.c["id", "status"]))
        return {row.id: row.status for row in result}


def _reading(storage: SqlAlchemyStorage) -> AsyncConnection:
    return storage.engine.execution_options(semel_read_only=True).connect()


def sync_engine(database: Database, **options: Any) -> Engine:
    """Return an engine for sync sessions, prepared as a storage would."""
    url = make_url(database.url).set(drivername=SYNC_DRIVERS[database.name])
    engine = create_engine(url, **options)
    database_of(engine.dialect).prepare_engine(engine)
    return engine


class Boom(Exception):  # noqa: N818  short, as it is raised all over
    """Something goes wrong in the application."""


@contextmanager
def interrupted() -> Iterator[None]:
    """Expect that the application raises `Boom` inside."""
    with pytest.raises(Boom):
        yield


class Stall:
    """A commit that has written its events and waits before its COMMIT."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.all_reached = asyncio.Event()
        self.go_on = asyncio.Event()


@asynccontextmanager
async def stalling(engine: AsyncEngine, *, commits: int = 1) -> AsyncIterator[Stall]:
    """Let the next *commits* on *engine* wait, after semel's work and before the database's."""
    stall, left = Stall(), commits

    def wait(connection: Connection) -> None:
        nonlocal left
        # The relay's own connections commit when they are opened, at any moment.
        ours = connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT"
        if left and ours:
            left -= 1
            stall.reached.set()
            if not left:
                stall.all_reached.set()
            await_only(asyncio.wait_for(stall.go_on.wait(), PATIENCE))

    event.listen(engine.sync_engine, "commit", wait)
    try:
        yield stall
    finally:
        stall.go_on.set()
        event.remove(engine.sync_engine, "commit", wait)


@asynccontextmanager
async def stalled_commit(storage: SqlAlchemyStorage, *, key: str | None) -> AsyncIterator[None]:
    """Inside, one event is written and not committed."""

    async def write() -> None:
        async with storage.unit_of_work() as uow:
            await uow.outbox.add("stalled", 1, key=key)
            await uow.commit()

    async with stalling(storage.engine) as stall, asyncio.timeout(PATIENCE):
        task = asyncio.create_task(write())
        await stall.reached.wait()
        yield
        stall.go_on.set()
        await task


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what only the database knows, such as that a session waits for a lock."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            # InnoDB answers from a copy that it renews when nobody has asked for 100 ms.
            await asyncio.sleep(0.11)


async def someone_waits(connection: AsyncConnection, waiting: int = 1) -> bool:
    """Tell whether that many sessions of this database wait for a lock."""
    await connection.rollback()  # PostgreSQL gives one answer per transaction
    if connection.dialect.name == "postgresql":
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock'"
        )
    else:
        sql = (
            "SELECT count(*) FROM information_schema.innodb_trx t JOIN "
            "information_schema.processlist p ON p.id = t.trx_mysql_thread_id "
            "WHERE t.trx_state = 'LOCK WAIT' AND p.db = database()"
        )
    return waiting <= (await connection.scalar(text(sql)) or 0)
