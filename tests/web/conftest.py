"""A bank on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from semel import SqlAlchemyStorage
from tests.services import Database
from tests.web.bank import Bank


@pytest.fixture
async def bank(database: Database) -> AsyncIterator[Bank]:
    """A fresh bank; for some databases: `parametrize("database", ["sqlite"], indirect=True)`."""
    async with SqlAlchemyStorage(database.url) as storage:
        bank = Bank(storage)
        await bank.create()
        yield bank
