"""The inbox on every database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts.inbox import InboxStoreContract
from tests.services import Database


class TestInbox(InboxStoreContract):
    @pytest.fixture
    async def storage(self, database: Database) -> AsyncIterator[SqlAlchemyStorage]:
        async with SqlAlchemyStorage(database.url) as storage:
            await storage.initialize()
            yield storage
