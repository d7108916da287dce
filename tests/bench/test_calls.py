"""How much Python runs for one message, counted in calls of functions beside the bare side's.

Calls depend on the installed libraries, not on the machine; times are for `make bench`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from benchmarks.databases import business
from benchmarks.questions.inbox import BARE, SINGLE, sides
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database

COUNT = 10


@pytest.fixture
async def storage(postgres: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(postgres.url, notify=False) as made:
        await made.initialize()
        async with made.engine.begin() as connection:
            await connection.run_sync(business.create)
        yield made


async def calls(work: Callable[[], Awaitable[Any]]) -> int:
    """How many functions *work* calls, those of C included, once everything is warm."""
    number = 0

    def count(_frame: Any, kind: str, _argument: Any) -> None:
        nonlocal number
        number += kind in ("call", "c_call")

    await work()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await work()
    finally:
        sys.setprofile(before)
    return number


async def test_an_inbox_message_beside_the_bare_inserts(storage: SqlAlchemyStorage) -> None:
    """Gate, unit of work, hash and completion: a fifth more calls at most."""
    known = sides(storage, COUNT)
    bare, single = await calls(known[BARE]), await calls(known[SINGLE])
    assert 1.2 * bare >= single, single / bare
