"""A database in which nothing happens but what a test counts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from benchmarks.databases import business
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database


@pytest.fixture
async def storage(postgres: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(postgres.url, notify=False) as made:
        await made.initialize()
        async with made.engine.begin() as connection:
            await connection.run_sync(business.create)
            await connection.execute(text("ALTER TABLE outbox SET (autovacuum_enabled = false)"))
        yield made
