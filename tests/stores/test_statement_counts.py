"""What the write path and the relay cost, counted at the drivers and at the servers.

One statement per commit on PostgreSQL, two elsewhere (SQLite needs no lock: one); one SELECT and
one UPDATE per batch; nothing per event.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from semel.projector import OutboxProjector
from semel.relay import Read
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts.relay import failed
from semel.testing.contracts.rows import PARTITIONS, instance
from semel.transports.memory import InMemoryMessageBus
from tests.services import Database
from tests.stores import shop

TAIL = {"sqlite": 1, "postgres": 1, "postgres-psycopg": 1, "mariadb": 2}
KEYS: dict[str, list[str | None]] = {
    "keyless": [None],
    "one-key": ["k"],
    "ten-keys": [f"k-{number}" for number in range(10)],
}
# What asyncpg asks about types, once per connection.
_DRIVERS_OWN = ("typeinfo_tree", "set_config('jit'")
_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SHOW", "SET", "SAVEPOINT", "RELEASE")


@pytest.fixture
async def storage(kept: Database) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage that sends no notifications: they are debounced, and sent on another connection."""
    async with SqlAlchemyStorage(kept.url, notify=False) as storage:
        await shop.empty(storage)
        yield storage


@asynccontextmanager
async def statements(storage: SqlAlchemyStorage) -> AsyncIterator[list[str]]:
    """Collect the text of every statement that is sent, without those that begin and end.

    The write path goes past SQLAlchemy's events to asyncpg, which is asked itself.
    """
    engine, sent = storage.engine.sync_engine, []
    watched: list[Any] = []

    def note(sql: str) -> None:
        words = " ".join(sql.split())
        if not words.startswith(_CONTROL) and not any(part in words for part in _DRIVERS_OWN):
            sent.append(words)

    def execute(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        note(sql)

    def logger(record: Any) -> None:
        note(record.query)

    def checkout(adapted: Any, *_: Any) -> None:
        if engine.dialect.driver == "asyncpg" and adapted.driver_connection not in watched:
            adapted.driver_connection.add_query_logger(logger)
            watched.append(adapted.driver_connection)

    event.listen(engine, "before_cursor_execute", execute)
    event.listen(engine, "checkout", checkout)
    try:
        yield sent
        await asyncio.sleep(0)  # asyncpg tells its loggers a moment later
    finally:
        event.remove(engine, "before_cursor_execute", execute)
        event.remove(engine, "checkout", checkout)
        for driver in watched:
            driver.remove_query_logger(logger)


async def commit(storage: SqlAlchemyStorage, *keys: str | None) -> None:
    """Commit an order, and one event per key."""
    async with storage.session_factory() as session:
        await session.execute(text("SELECT 1 FROM orders WHERE id = 'none'"))
        outbox = SqlAlchemyOutbox(session)
        for number, key in enumerate(keys):
            await outbox.add("t", {"n": number}, key=key)
        await session.commit()


@pytest.mark.parametrize("keys", list(KEYS))
async def test_a_commit_costs_the_same_whatever_the_number_of_events(
    storage: SqlAlchemyStorage, kept: Database, keys: str
) -> None:
    """The application's own statement, and the tail's."""
    await commit(storage, "warm")
    for count in (1, 10, 200):
        async with statements(storage) as sent:
            await commit(storage, *islice(cycle(KEYS[keys]), count))
        assert "SELECT 1 FROM orders WHERE id = 'none'" == sent[0]
        assert TAIL[kept.name] == len(sent[1:]), sent
    assert 1 + 1 + 10 + 200 == len(await shop.rows(storage))


async def test_a_commit_without_events_costs_nothing(storage: SqlAlchemyStorage) -> None:
    """Neither does one whose events were dropped."""
    await commit(storage, "warm")
    async with statements(storage) as sent:
        await commit(storage)
        async with storage.session_factory() as session:
            await SqlAlchemyOutbox(session).add("t", 1)
            await session.rollback()
            await session.commit()
    assert ["SELECT 1 FROM orders WHERE id = 'none'"] == sent


async def test_the_first_commit_of_an_engine_checks_the_tables(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """Once: two statements at most, on any connection of the engine or its copies."""
    copy = SqlAlchemyStorage(storage.engine.execution_options(any_option=1), notify=False)
    async with statements(storage) as sent:
        await commit(storage, "k")
    assert TAIL[kept.name] + 3 >= len(sent)
    async with copy, statements(storage) as sent:
        await commit(copy, "k")
    assert 1 + TAIL[kept.name] == len(sent)


@pytest.mark.parametrize("kept", ["postgres", "postgres-psycopg"], indirect=True)
async def test_a_bulk_costs_one_more(storage: SqlAlchemyStorage) -> None:
    """With more than 32 slots the global lock is tried first."""
    await commit(storage, "warm")
    async with statements(storage) as sent:
        await commit(storage, *(f"k-{number}" for number in range(500)))
    assert 3 == len(sent), sent


@pytest.mark.parametrize("kept", ["mariadb"], indirect=True)
@pytest.mark.parametrize("count", [1, 10, 200])
async def test_the_server_counts_the_same(storage: SqlAlchemyStorage, count: int) -> None:
    """A driver may cut `executemany` into one statement per row: the server knows."""
    await commit(storage, "warm")
    asked: list[int] = []

    def questions(connection: Connection) -> None:
        row = connection.execute(text("SHOW SESSION STATUS LIKE 'Questions'")).one()
        asked.append(int(row[1]))

    async with storage.session_factory() as session:
        await session.run_sync(lambda sync: questions(sync.connection()))
        for number in range(count):
            await SqlAlchemyOutbox(session).add("t", {"n": number}, key=f"k-{number % 10}")
        event.listen(storage.engine.sync_engine, "commit", questions)
        await session.commit()
        event.remove(storage.engine.sync_engine, "commit", questions)
    before, after = asked
    assert 2 == after - before - 1, "without the second SHOW"


async def test_the_relay_costs_one_select_and_one_update_per_batch(
    storage: SqlAlchemyStorage,
) -> None:
    """However many lanes and events it has."""
    await commit(storage, *(f"k-{number}" for number in range(300)))
    reads = [Read(number, 0, 100) for number in PARTITIONS]
    await storage.relay.fetch(reads[:1])
    await storage.relay.acknowledge([0], keep=True)
    async with statements(storage) as sent:
        # The connections are kept: they were checked out before anybody counted.
        await storage.relay.close()
        entries = await storage.relay.fetch(reads)
        await storage.relay.acknowledge([entry.sequence for entry in entries], keep=True)
    assert 300 == len(entries)
    assert (1, 1, 0) == (*shares(sent), len(about_events(sent)) - 2), sent


async def test_many_failures_cost_what_one_of_each_kind_costs(storage: SqlAlchemyStorage) -> None:
    await commit(storage, *(f"k-{number}" for number in range(20)))
    relay, me = storage.relay, instance("relay")
    await relay.heartbeat(me)
    epochs = {claim.partition: claim.epoch for claim in await relay.claim(me, len(PARTITIONS))}
    entries = await relay.fetch([Read(number, 0, 100) for number in PARTITIONS])
    failures = [failed(entry) for entry in entries[:10]]
    failures += [failed(entry, retry_in=None) for entry in entries[10:]]
    async with statements(storage) as sent:
        written = await relay.fail(me, epochs, failures)
    assert {entry.sequence for entry in entries} == written
    assert 3 == len(about_events(sent)), sent


def about_events(sent: list[str]) -> list[str]:
    """Return the statements on the table of events; leases have tables of their own."""
    return [sql for sql in sent if {"outbox", "(outbox"} & set(sql.split())]


def shares(sent: list[str]) -> tuple[int, int]:
    """Count fetches, which read bodies, and acknowledgements."""
    found = about_events(sent)
    reads = [sql for sql in found if sql.startswith(("SELECT", "(SELECT"))]
    fetches = [sql for sql in reads if "content_type" in sql]
    return len(fetches), len([sql for sql in found if "SET status" in sql])


async def test_draining_a_thousand_events(storage: SqlAlchemyStorage) -> None:
    """In batches of a hundred: 29 statements at most.

    By hand: 10 acknowledgements, one per batch; 11 fetches, of which each but the last brings a
    batch or more; beside each of up to 4 windows of events a look at the scheduled lanes; once per
    heartbeat, of which there is one, 2 statements for the dead lanes and 1 for the parked ones,
    and 1 in reserve.
    """
    for start in range(0, 1000, 250):
        await commit(storage, *(f"k-{number % 50}" for number in range(start, start + 250)))
    config = OutboxProjectorConfig(batch_size=100)
    async with InMemoryMessageBus() as bus:
        projector = OutboxProjector(store=storage.relay, message_bus=bus, config=config)
        published = 0
        async with statements(storage) as sent:
            async with asyncio.timeout(shop.PATIENCE):
                while published < 1000:
                    published += await projector.run_once()
            await projector.stop()
    assert 1000 == published
    fetches, acknowledgements = shares(sent)
    assert 11 >= fetches
    assert 10 >= acknowledgements
    assert 8 >= len(about_events(sent)) - fetches - acknowledgements, Counter(about_events(sent))
    assert {"SENT"} == {row.status for row in await shop.rows(storage)}
