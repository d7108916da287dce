"""SQLite inside the loop: the statements are real, the way to the server is not.

aiosqlite runs SQLite in threads, whose order no seed decides. Here a call travels for a while in
simulated time, may get lost on the way there or back, and runs at once when it arrives.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

if TYPE_CHECKING:
    from tests.simulation.nodes import Node

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_BUSY_SECONDS = 30.0
_BUSY = 5
# What the simulation does itself: files are short-lived, and waiting happens in the loop.
_IGNORED = ("PRAGMA busy_timeout", "PRAGMA synchronous", "PRAGMA journal_mode")


def engine_for(node: Node) -> AsyncEngine:
    """Return an engine whose connections belong to *node* and die with it."""

    async def connect(*_args: Any, **_options: Any) -> Connection:
        await node.link.travel()
        return Connection(node)

    engine = create_async_engine(
        f"sqlite+aiosqlite:///{node.database}",
        async_creator=connect,
        hide_parameters=True,
        pool_size=20,
    )
    # A node keeps its dialect from run to run: statements are compiled once.
    first = _FIRST.setdefault(node.name, engine)
    engine.sync_engine.dialect = first.sync_engine.dialect
    engine.sync_engine.pool._dialect = first.sync_engine.dialect
    engine.sync_engine._compiled_cache = first.sync_engine._compiled_cache
    return engine


_FIRST: dict[str, AsyncEngine] = {}


class Connection:
    """What SQLAlchemy sees of aiosqlite."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.isolation_level: str | None = None
        self._connection = True  # else SQLAlchemy would leave out the commit, without a word
        self._raw: sqlite3.Connection | None = open_database(node.database, node.loop.time)
        self._raw.create_function("sim_writer", 0, lambda: node.name)
        self._tx = _Immediately()
        node.connections.append(self)

    @property
    def _conn(self) -> Self:
        return self

    @property
    def in_transaction(self) -> bool:
        return self._raw is not None and self._raw.in_transaction

    def raw(self) -> sqlite3.Connection:
        if self._raw is None:
            raise gone()
        return self._raw

    def cursor(self) -> _Cursor:
        return _Cursor(self)

    async def create_function(self, *args: Any, **options: Any) -> None:
        self.raw().create_function(*args, **options)

    async def commit(self) -> None:
        if self.in_transaction or self._raw is None:
            await self.call(lambda raw: raw.commit(), "COMMIT", durable=True)

    async def rollback(self) -> None:
        if self.in_transaction:
            await self.call(lambda raw: raw.rollback(), "ROLLBACK")

    async def close(self) -> None:
        self.kill()

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        """End the connection, as a server does that does not hear of its client any more."""
        raw, self._raw = self._raw, None
        if raw is not None:
            self.node.connections.remove(self)
            raw.rollback()
            raw.close()

    async def call(
        self, function: Callable[[sqlite3.Connection], Any], what: str, *, durable: bool = False
    ) -> Any:
        """Let *function* run on the server; either way may take long or lead nowhere."""
        link = self.node.link
        try:
            await link.travel()
            result = await self._run(function)
            if durable:
                self.node.trace("sql", what)
                self.node.world.spring("commit", self.node)
                link.maybe_lose_answer()
                await link.travel(back=True)
        except ConnectionError as error:
            self.kill()
            raise gone() from error
        return result

    async def _run(self, function: Callable[[sqlite3.Connection], Any]) -> Any:
        waited, pause = 0.0, 0.002
        while True:
            try:
                return function(self.raw())
            except sqlite3.OperationalError as error:
                code = getattr(error, "sqlite_errorcode", 0)  # ours have none
                if code & 0xFF != _BUSY or waited > _BUSY_SECONDS:
                    raise
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, 0.1)


class _Cursor:
    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: Sequence[Any] = ()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, sql: str, parameters: Any = ()) -> Self:
        if not sql.startswith(_IGNORED):
            await self._call(sql, lambda cursor: cursor.execute(sql, parameters))
        return self

    async def executemany(self, sql: str, parameters: Any) -> Self:
        await self._call(sql, lambda cursor: cursor.executemany(sql, parameters))
        return self

    async def _call(self, sql: str, run: Callable[[sqlite3.Cursor], Any]) -> None:
        connection = self._connection

        def work(raw: sqlite3.Connection) -> None:
            connection.node.link.maybe_refuse()
            cursor = raw.cursor()
            run(cursor)
            self.description = cursor.description
            self._rows = cursor.fetchall() if cursor.description else ()
            self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid
            cursor.close()

        verb = sql.lstrip()[:6].upper()
        if verb == "BEGIN ":
            connection.node.world.spring("begin", connection.node)
        alone = not connection.in_transaction and verb in ("INSERT", "UPDATE", "DELETE")
        await connection.call(work, f"{verb} {_table(sql)}", durable=alone)

    async def fetchall(self) -> Sequence[Any]:
        return self._rows

    async def close(self) -> None:
        self._rows = ()


class _Immediately:
    """Takes the place of the queue of aiosqlite's thread."""

    def put_nowait(self, item: tuple[asyncio.Future[Any], Callable[[], Any]]) -> None:
        future, function = item
        future.set_result(function())


def open_database(path: str, time: Callable[[], float]) -> sqlite3.Connection:
    """Open the file; what SQLite calls now is *time*."""
    raw = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    raw.execute("PRAGMA synchronous = OFF")

    def moment(value: str) -> datetime:
        if value == "now":
            return EPOCH + timedelta(seconds=time())
        return datetime.fromisoformat(value).replace(tzinfo=UTC)

    def strftime(form: str, value: str, shift: str = "+0 seconds") -> str:
        assert form == "%Y-%m-%d %H:%M:%f"
        at = moment(value) + timedelta(seconds=float(shift.removesuffix(" seconds")))
        return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"

    def julianday(value: str | None) -> float | None:
        return None if value is None else (moment(value) - EPOCH).total_seconds() / 86400.0

    raw.create_function("strftime", -1, strftime)
    raw.create_function("julianday", 1, julianday)
    return raw


def gone() -> sqlite3.OperationalError:
    """Return what the driver raises when the connection is lost."""
    return sqlite3.OperationalError("no active connection")


def busy() -> sqlite3.OperationalError:
    """Return what SQLite raises when another one holds the lock: the transaction may be retried."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = _BUSY
    return error


def _table(sql: str) -> str:
    words = sql.split(None, 3)
    return words[1 if words[0].upper() == "UPDATE" else 2] if len(words) > 2 else ""
