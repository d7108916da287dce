"""A million rows in the outbox and in the inbox: no question looks at more than a part of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from semel.operations import Count, InboxFilter, OutboxFilter, Verb
from semel.sqlalchemy.outbox_search import SCANNED
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import InboxStatus, OutboxStatus
from tests.services import Database, fresh_database
from tests.stores.bulk import fill_inbox, fill_outbox

ROWS = 1_000_000
# A search looks at the windows' edges and then at the windows; a figure at its part of the rows.
MOST_ROWS = 250_000
MOST_STATEMENTS = 70  # two times are found by bisection, then there are ten windows
NOW = datetime.now(UTC)
LAST_WEEK = {"since": NOW - timedelta(days=7), "until": NOW - timedelta(days=6)}

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with fresh_database("postgres", tmp_path_factory.mktemp("large")) as database:
        asyncio.run(_fill(database))
        yield database


async def _fill(database: Database) -> None:
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            for table in ("outbox", "inbox"):
                # Nobody needs these rows after a crash.
                await connection.execute(text(f"ALTER TABLE {table} SET UNLOGGED"))
        await fill_outbox(storage, ROWS)
        await fill_inbox(storage, ROWS)


@pytest.fixture
async def storage(large: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(large.url) as storage:
        yield storage


@contextmanager
def recorded(storage: SqlAlchemyStorage) -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements that are sent inside."""
    statements: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> None:
        if sql.lstrip().upper().startswith(("SELECT", "WITH")):
            statements.append((sql, parameters))

    event.listen(storage.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(storage.engine.sync_engine, "before_cursor_execute", note)


def _touched(plan: dict[str, Any]) -> float:
    """How many rows of the large tables a plan looked at."""
    rows = 0.0
    if plan.get("Relation Name") in ("outbox", "inbox"):
        seen = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        rows = (seen + plan.get("Rows Removed by Index Recheck", 0)) * plan["Actual Loops"]
    return rows + sum(_touched(part) for part in plan.get("Plans", ()))


async def frugal(storage: SqlAlchemyStorage, question: Awaitable[Any]) -> Any:
    """Return the answer, once it is clear that it took few statements and looked at few rows."""
    with recorded(storage) as statements:
        answer = await question
    assert 1 <= len(statements) <= MOST_STATEMENTS
    rows = 0.0
    async with storage.engine.connect() as connection:
        for sql, parameters in statements:
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"
            found = await connection.exec_driver_sql(explained, parameters)
            plan = found.scalar_one()
            [top] = json.loads(plan) if isinstance(plan, str) else plan
            rows += _touched(top["Plan"])
    assert rows <= MOST_ROWS, statements
    return answer


@pytest.mark.parametrize(
    ("where", "rows", "more"),
    [
        (OutboxFilter(), 50, True),
        (OutboxFilter(status=OutboxStatus.DEAD), 50, True),
        (OutboxFilter(status=OutboxStatus.FAILED), 0, False),
        (OutboxFilter(status=OutboxStatus.SENT, tenant_id="t3"), 50, True),
        (OutboxFilter(status=OutboxStatus.DEAD, error="absent"), 0, False),
        (OutboxFilter(topic="absent"), 0, True),
        (OutboxFilter(error="timeout"), 50, True),
        (OutboxFilter(key="k7", **LAST_WEEK), 50, True),
        (OutboxFilter(key="absent", **LAST_WEEK), 0, True),
        (OutboxFilter(until=NOW - timedelta(days=20)), 0, False),
    ],
)
async def test_searching_the_outbox(
    storage: SqlAlchemyStorage, where: OutboxFilter, rows: int, more: bool
) -> None:
    page = await frugal(storage, storage.outbox.search(where))
    assert (rows, more) == (len(page), page.next is not None)
    await frugal(storage, storage.outbox.count(where))


async def test_figures_of_the_outbox(storage: SqlAlchemyStorage) -> None:
    """Exact where an index has few rows, capped and said so where there are many."""
    stats = await frugal(storage, storage.outbox.stats())
    assert (ROWS // 1000, ROWS // 100 - ROWS // 1000) == (
        stats.counts[OutboxStatus.DEAD],
        stats.counts[OutboxStatus.NEW],
    )
    assert {"SENT"} == stats.capped
    assert stats.counts[OutboxStatus.SENT] == SCANNED - SCANNED // 100
    assert stats.oldest_unsent_seconds > 9 * 86400
    await frugal(storage, storage.outbox.stats(tenant_id="t0"))
    assert Count(1000) == await storage.outbox.count(OutboxFilter(status=OutboxStatus.DEAD))
    keys = await frugal(storage, storage.outbox.blocked_keys())
    assert 50 == len(keys)
    assert not keys[0].waiting.capped


async def test_why_and_get(storage: SqlAlchemyStorage) -> None:
    [dead] = await storage.outbox.search(OutboxFilter(status=OutboxStatus.DEAD), limit=1)
    [new] = await storage.outbox.search(OutboxFilter(status=OutboxStatus.NEW), limit=1)
    for row in (dead, new):
        assert await frugal(storage, storage.outbox.why(row.id)) is not None
        assert await frugal(storage, storage.outbox.get(row.id)) is not None


@pytest.mark.parametrize(
    ("where", "rows", "more"),
    [
        (InboxFilter(), 50, True),
        (InboxFilter(status=InboxStatus.DEAD), 50, True),
        (InboxFilter(consumer_name="absent"), 0, True),
        (InboxFilter(consumer_name="c1", tenant_id="t1"), 50, True),
        (InboxFilter(reason="boom", **LAST_WEEK), 50, True),
        (InboxFilter(until=NOW - timedelta(days=20)), 0, False),
    ],
)
async def test_searching_the_inbox(
    storage: SqlAlchemyStorage, where: InboxFilter, rows: int, more: bool
) -> None:
    page = await frugal(storage, storage.inbox.search(where))
    assert (rows, more) == (len(page), page.next is not None)
    await frugal(storage, storage.inbox.count(where))


async def test_figures_of_the_inbox(storage: SqlAlchemyStorage) -> None:
    stats = await frugal(storage, storage.inbox.stats())
    assert ["c0", "c1", "c2", "c3"] == [each.consumer_name for each in stats]
    assert all(each.capped for each in stats)


async def test_a_batch_of_a_bulk_action(storage: SqlAlchemyStorage) -> None:
    """It finds its way to the few rows that match without going through the table."""
    steps = storage.outbox.bulk(Verb.DROP, OutboxFilter(topic="absent"), dry_run=True)
    await frugal(storage, anext(steps))
    steps = storage.outbox.bulk(Verb.REPLAY, OutboxFilter(**LAST_WEEK), dry_run=True)
    first = await frugal(storage, anext(steps))
    assert 1000 == first.changed
