"""One database per backend for the whole run, emptied before each test: creating one is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import BACKENDS, Database, fresh_database, mark
from tests.stores import shop


@pytest.fixture(scope="session", params=list(BACKENDS))
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """A database with semel's tables and the shop's.

    For some: ``@pytest.mark.parametrize("kept", ["sqlite", "mariadb"], indirect=True)``.
    """
    with fresh_database(request.param, tmp_path_factory.mktemp("kept")) as database:
        asyncio.run(_create(database))
        yield database


async def _create(database: Database) -> None:
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            await connection.run_sync(shop.Base.metadata.create_all)


@pytest.fixture
async def storage(kept: Database) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage with empty tables."""
    async with SqlAlchemyStorage(kept.url) as storage:
        await shop.empty(storage)
        yield storage


@pytest.fixture
async def another(storage: SqlAlchemyStorage, kept: Database) -> AsyncIterator[SqlAlchemyStorage]:
    """A second storage on the same database, as another process has it."""
    async with SqlAlchemyStorage(kept.url) as another:
        yield another


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test by its backend."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("kept") in BACKENDS:
        item.add_marker(mark(parameters["kept"]))
