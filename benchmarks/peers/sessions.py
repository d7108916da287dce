"""A business table and SQLAlchemy sessions, for drivers of libraries that use them."""

from __future__ import annotations

from driving import SQLALCHEMY_URL
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

business = Table(
    "business",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("text", String(500)),
)


async def prepare(*tables: MetaData) -> tuple[AsyncEngine, async_sessionmaker[AsyncSession]]:
    """An engine whose database has the tables, and sessions on it."""
    engine = create_async_engine(SQLALCHEMY_URL, pool_size=20)
    async with engine.begin() as connection:
        for metadata in (business.metadata, *tables):
            await connection.run_sync(metadata.create_all)
    return engine, async_sessionmaker(engine, expire_on_commit=False)
