"""What the tests of consumers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, make_url, select

from semel.consumer import EventConsumer
from semel.envelope import MessageEnvelope
from semel.inbox import ConsumerInbox
from semel.protocols import UnitOfWork
from semel.retry import RetryPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from semel.transports.memory import InMemoryMessageBus

QUICK = RetryPolicy(max_attempts=3, base_seconds=0.01, max_seconds=0.02)

tables = MetaData()
effects = Table(
    "effects",
    tables,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False),
    mysql_engine="InnoDB",
)


sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


stock = Table(
    "stock",
    tables,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("left", Integer, nullable=False),
    mysql_engine="InnoDB",
)


async def prepare(storage: SqlAlchemyStorage) -> None:
    await storage.initialize()
    async with storage.engine.begin() as connection:
        await connection.run_sync(tables.create_all)
        await connection.execute(insert(stock), [{"id": n, "left": 10} for n in (1, 2)])


def job(content: str = "a", *, key: str | None = None, **fields: Any) -> MessageEnvelope:
    return MessageEnvelope(
        **{
            "topic": "jobs",
            "event_type": "job.assigned",
            "event_id": f"id-{content}",
            "key": key,
            "payload": {"name": content},
        }
        | fields
    )


async def write(message: MessageEnvelope, uow: UnitOfWork) -> None:
    await uow.session.execute(insert(effects).values(name=message.payload["name"]))


async def names(storage: SqlAlchemyStorage) -> list[str]:
    async with storage.engine.connect() as connection:
        return list(await connection.scalars(select(effects.c.name).order_by(effects.c.id)))


async def letters(storage: SqlAlchemyStorage) -> list[OutboxRecord]:
    async with storage.session_factory() as session:
        return list(await session.scalars(select(OutboxRecord).order_by(OutboxRecord.sequence)))


async def record(storage: SqlAlchemyStorage, message_id: str = "id-a") -> InboxRecord:
    [found] = [r for r in await storage.inbox.search() if r.message_id == message_id]
    return found


async def drained(consumer: EventConsumer, seconds: float = 30) -> None:
    """Wait until the group has acked everything."""

    async def idle() -> bool:
        return not await consumer.lag() and not consumer.in_flight

    await until(idle, seconds)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.005)


def consumer_of(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, name: str = "billing", **options: Any
) -> EventConsumer:
    return EventConsumer(name, "jobs", bus=bus, storage=storage, **{"retry": QUICK} | options)


async def perform(payload: dict[str, Any], uow: Any) -> str:
    await uow.session.execute(insert(effects).values(name=payload["name"]))
    return f"did {payload['name']}"


def run(inbox: ConsumerInbox, handler: Any = perform, *, id: str = "m-1", **options: Any) -> Any:  # noqa: A002
    payload = options.pop("payload", {"name": "a"})
    return inbox.process_idempotent(id, "orders", "OrderPlaced", payload, handler, **options)


class Line:
    """A connection to a server that can be cut and mended."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.broken = asyncio.Event()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self.broken.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[tuple[str, Line]]:
    target = make_url(url)
    assert target.host is not None
    assert target.port is not None
    line = Line(target.host, target.port)
    await line.mend()
    through = target.set(host="127.0.0.1", port=line.port)
    try:
        yield through.render_as_string(hide_password=False), line
    finally:
        await line.cut()
