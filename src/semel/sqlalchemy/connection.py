"""Connections that the relay keeps between statements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.sqlalchemy.dialects import database_of


class KeptConnection:
    """One connection in AUTOCOMMIT, used by one task at a time, replaced after any error.

    Each statement is a transaction of its own, without the round trips of BEGIN and COMMIT: a
    process that is frozen between two of them holds no lock.
    """

    def __init__(self, engine: AsyncEngine, **options: Any) -> None:
        self._engine = engine
        self._database = database_of(engine.dialect)
        self._options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", **options}
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[AsyncConnection]:
        """Lend the connection; an error or a cancellation inside discards it."""
        async with self._lock:
            if self._connection is None:
                self._connection = await self._open()
            try:
                yield self._connection
            except BaseException:
                # After a cancellation the answer may still be under way: never reuse.
                await self._discard()
                raise

    async def close(self) -> None:
        """Close the connection."""
        async with self._lock:
            await self._discard()

    async def _open(self) -> AsyncConnection:
        connection = await self._engine.connect()
        try:
            if self._options:
                connection = await connection.execution_options(**self._options)
            await connection.run_sync(self._database.prepare_relay)
            await connection.commit()
        except BaseException:
            await asyncio.shield(_end(connection))
            raise
        return connection

    async def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Its session has settings of ours: it does not go back to the pool.
            await asyncio.shield(_end(connection))


class KeptTransactions(KeptConnection):
    """The same for transactions of several statements; the server ends one that is left alone."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        level = self._database.relay_isolation
        self._options = {} if level is None else {"isolation_level": level}

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """Lend the connection for one transaction, which is committed at the end."""
        async with self.use() as connection, connection.begin():
            yield connection


async def _end(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()
