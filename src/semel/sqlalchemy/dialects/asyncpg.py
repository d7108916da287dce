"""Statements that go to asyncpg directly.

Past SQLAlchemy's statement and result layers, which cost as much as a short transaction, and as
much as decoding the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection


def drives(connection: Connection | AsyncConnection) -> bool:
    """Tell whether *connection* is asyncpg's."""
    return connection.dialect.driver == "asyncpg"


@cache
def numbered(sql: str, names: tuple[str, ...]) -> str:
    """Return *sql* with `:name ` of each of *names* as `$1 `, `$2 `..., as asyncpg wants it."""
    for number, name in enumerate(names, start=1):
        sql = sql.replace(f":{name} ", f"${number} ")
    return sql


def run(connection: Connection, sql: str, arguments: Collection[Any]) -> str:
    """Execute in the connection's transaction, and return the server's word on it."""
    adapted: Any = connection.connection.dbapi_connection
    try:
        with _sqlalchemy_errors("INSERT INTO outbox"):
            status: str = adapted.run_async(lambda driver: driver.execute(sql, *arguments))
    except OperationalError as error:
        if error.connection_invalidated:
            connection.invalidate(error)  # as SQLAlchemy does: it must not go back to the pool
        raise
    return status


async def execute(connection: AsyncConnection, sql: str) -> None:
    """Execute a statement that needs neither a plan nor a transaction."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    with _sqlalchemy_errors(sql.partition(" ")[0]):
        await driver.execute(sql)


async def fetch(connection: AsyncConnection, sql: str, arguments: Collection[Any]) -> Sequence[Any]:
    """Return the rows of a query, outside of transactions."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    with _sqlalchemy_errors("SELECT FROM outbox"):
        rows: Sequence[Any] = await driver.fetch(sql, *arguments)
    return rows


@contextmanager
def _sqlalchemy_errors(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        state, lost = getattr(error, "sqlstate", None) or "", is_lost(error)
        if not state and not lost:
            raise
        wrapper = IntegrityError if state.startswith("23") else OperationalError
        raise wrapper(
            what, None, error, hide_parameters=True, connection_invalidated=lost
        ) from error


def is_lost(error: BaseException | None) -> bool:
    """Tell what asyncpg itself says of a connection that broke: no SQLSTATE came with it."""
    name = type(error).__name__
    closed = name == "InterfaceError" and "connection is closed" in str(error)
    return closed or name == "InternalClientError"
