"""A place of its own on a server, which is gone afterwards."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from semel.errors import ConfigurationError, describe

# Whoever comes after a crash sees what it was.
PREFIX = "semel_bench_"


@asynccontextmanager
async def scratch_engine(engine: AsyncEngine, **options: Any) -> AsyncIterator[AsyncEngine]:
    """An engine on the same server whose tables are apart from those of *engine*.

    A schema on PostgreSQL, a database on MySQL and MariaDB, a file beside SQLite's.
    """
    url, name = engine.url, PREFIX + secrets.token_hex(6)
    if engine.dialect.name == "sqlite":
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=Path(str(url.database)).parent) as at:
            async with _engine(url.set(database=str(Path(at) / "scratch.db"))) as made:
                yield made
        return
    cascade = " CASCADE" if engine.dialect.name == "postgresql" else ""
    plain = engine.execution_options(isolation_level="AUTOCOMMIT")
    try:
        async with plain.connect() as connection:
            await connection.execute(text(f"CREATE SCHEMA {name}"))
    except DBAPIError as error:
        raise ConfigurationError(
            f"no schema of its own could be made for this ({describe(error)}): give the user the "
            "right to create one, or name another database"
        ) from None
    try:
        if cascade:
            async with _engine(url, **options) as made:
                _search_in(made, name)
                yield made
        else:
            async with _engine(url.set(database=name), **options) as made:
                yield made
    finally:
        async with plain.connect() as connection:
            await connection.execute(text(f"DROP SCHEMA {name}{cascade}"))


@asynccontextmanager
async def _engine(url: URL, **options: Any) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url, hide_parameters=True, **options)
    try:
        yield made
    finally:
        await made.dispose()


def _search_in(engine: AsyncEngine, schema: str) -> None:
    # Before SQLAlchemy asks a first connection which schema is the default.
    @event.listens_for(engine.sync_engine, "connect", insert=True)
    def settle(connection: Any, _record: Any) -> None:
        before, connection.autocommit = connection.autocommit, True
        cursor = connection.cursor()
        cursor.execute(f"SET SESSION search_path = {schema}")
        cursor.close()
        connection.autocommit = before
