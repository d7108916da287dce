"""A shop with a dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from semel import SqlAlchemyStorage
from tests.dashboard.site import Site, make_site
from tests.dashboard.workload import make_hub
from tests.services import Database


@pytest.fixture
async def storage(sqlite: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        yield storage


@pytest.fixture
async def site(storage: SqlAlchemyStorage) -> AsyncIterator[Site]:
    """A dashboard of a hub that does not run."""
    site = make_site(make_hub(storage))
    async with site.dashboard:
        yield site
