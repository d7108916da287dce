"""A bank on each database, created once and emptied before each test: creating one is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from semel import SqlAlchemyStorage
from tests.services import BACKENDS, Database, fresh_database, mark
from tests.web.bank import Bank


@pytest.fixture(scope="session", params=list(BACKENDS))
def vault(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """A database with the bank's tables.

    For some: ``@pytest.mark.parametrize("vault", ["sqlite", "mariadb"], indirect=True)``.
    """
    with fresh_database(request.param, tmp_path_factory.mktemp("vault")) as database:
        asyncio.run(_create(database))
        yield database


async def _create(database: Database) -> None:
    async with SqlAlchemyStorage(database.url) as storage:
        await Bank(storage).create()


@pytest.fixture
async def bank(vault: Database) -> AsyncIterator[Bank]:
    """A bank without payments."""
    async with SqlAlchemyStorage(vault.url) as storage:
        bank = Bank(storage)
        await bank.empty()
        yield bank


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test by its backend."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("vault") in BACKENDS:
        item.add_marker(mark(parameters["vault"]))
