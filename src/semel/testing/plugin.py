"""Fixtures for the tests of services; inert until one of them is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from semel.sqlalchemy.storage import SqlAlchemyStorage
    from semel.testing.clock import FakeClock
    from semel.transports.memory import InMemoryMessageBus

pytest.register_assert_rewrite("semel.testing.contracts")


@pytest.fixture
async def semel_storage(tmp_path: Path) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage with all tables, on a SQLite file of this test's own."""
    from semel.sqlalchemy.storage import SqlAlchemyStorage  # noqa: PLC0415  inert until used

    async with SqlAlchemyStorage(f"sqlite+aiosqlite:///{tmp_path / 'semel.db'}") as storage:
        await storage.initialize()
        yield storage


@pytest.fixture
async def semel_bus() -> AsyncIterator[InMemoryMessageBus]:
    """An in-memory bus with faults on demand."""
    from semel.transports.memory import InMemoryMessageBus  # noqa: PLC0415  inert until used

    async with InMemoryMessageBus() as bus:
        yield bus


@pytest.fixture
def semel_clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    from semel.testing.clock import FakeClock  # noqa: PLC0415  inert until used

    return FakeClock()
