"""What the examples of the specification need around them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import String
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import SqlAlchemyStorage
from tests.services import Database


class Base(DeclarativeBase):
    """The service's own tables."""


class Effect(Base):
    """One row for each time that business logic ran."""

    __tablename__ = "effects"

    number: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(100))


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage with semel's tables and the service's own, on every database."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield storage


@pytest.fixture
async def session(storage: SqlAlchemyStorage) -> AsyncIterator[AsyncSession]:
    """A session as a service makes it."""
    async with storage.session_factory() as session:
        yield session
