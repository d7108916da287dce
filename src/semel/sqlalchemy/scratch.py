"""Tables for measurements, beside a service's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from semel.sqlalchemy.dialects.scratch import scratch_engine
from semel.sqlalchemy.storage import SqlAlchemyStorage

_business = Table(
    "business",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("text", String(500)),
)


@asynccontextmanager
async def scratch_storage(
    storage: SqlAlchemyStorage, **options: Any
) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage with empty tables on the same server; they are dropped afterwards."""
    async with (
        scratch_engine(storage.engine, **options) as engine,
        SqlAlchemyStorage(engine) as made,
    ):
        await made.initialize()
        async with engine.begin() as connection:
            await connection.run_sync(_business.create)
        yield made


async def write_business_row(session: AsyncSession, text: str) -> None:
    """What a business transaction does, for measurements."""
    await session.execute(insert(_business), {"text": text})
