"""A storage on each database, and a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.consuming import prepare
from tests.services import Database


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(database.url) as storage:
        await prepare(storage)
        yield storage


@pytest.fixture
async def bus() -> AsyncIterator[InMemoryMessageBus]:
    async with InMemoryMessageBus() as bus:
        yield bus
