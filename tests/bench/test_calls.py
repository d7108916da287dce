"""How much Python runs for one message, counted in calls of functions beside the bare side's.

Calls depend on the installed libraries, not on the machine; times are for `make bench`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from benchmarks.peers.requesting import request
from benchmarks.questions.idempotency import service
from benchmarks.questions.inbox import BARE, SINGLE, sides
from benchmarks.questions.write import transactions
from semel.sqlalchemy.storage import SqlAlchemyStorage

COUNT = 10


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


async def test_a_request_with_a_key_beside_one_without(storage: SqlAlchemyStorage) -> None:
    """A claim in a transaction of its own, and the answer in that of the request."""
    bare, whole = service(storage, middleware=False), service(storage, middleware=True)
    keys = iter(("first", "second"))
    without = await calls(lambda: request(bare, "/plain"))
    keyed = await calls(lambda: request(whole, "/keyed", next(keys)))
    assert 2.3 * without >= keyed, keyed / without


@pytest.mark.parametrize(("events", "most"), [(1, 1.65), (10, 3.0)])
async def test_a_transaction_with_events_beside_one_without(
    storage: SqlAlchemyStorage, events: int, most: float
) -> None:
    """Adding, the lock and the insert."""
    engine = create_async_engine(storage.engine.url)
    plain = async_sessionmaker(engine)
    bare = await calls(lambda: transactions(plain, COUNT, 0, connections=1))
    with_events = await calls(
        lambda: transactions(storage.session_factory, COUNT, events, connections=1)
    )
    await engine.dispose()
    assert most * bare >= with_events, with_events / bare
