"""The relay's own database drops its connections, is set up oddly, or is shared."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from semel.errors import ConfigurationError
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    each_database,
    eventually,
    keyed,
    projector,
    row,
    running,
    statuses,
)
from tests.services import Database


@pytest.mark.parametrize("database", ["postgres", "postgres-psycopg", "mariadb"], indirect=True)
async def test_connections_of_the_relay_are_terminated(database: Database):
    """D04: every 0.2 s all connections of the relay are cut; everything is sent, in order."""
    async with SqlAlchemyStorage(database.url) as admin, SqlAlchemyStorage(database.url) as storage:
        await admin.initialize()
        bus = ScriptedBus()
        async with running(projector(storage, bus, lease_seconds=3)):
            for round_number in range(5):
                await add_many(admin, keyed(40, 5, prefix=f"r{round_number}x"))
                await _cut_others(admin)
                await asyncio.sleep(0.2)
            await eventually(lambda: _sent(admin))

        assert 200 == len(set(bus.published_ids()))
        assert_ordered(bus.published_ids())


async def _cut_others(storage: SqlAlchemyStorage) -> None:
    async with storage.engine.connect() as connection:
        if storage.engine.dialect.name == "postgresql":
            await connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
            return
        found = await connection.scalars(
            text(
                "SELECT id FROM information_schema.processlist "
                "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
        )
        for number in found.all():
            with contextlib.suppress(DBAPIError):  # it has left by itself
                await connection.execute(text(f"KILL {number}"))


async def _sent(storage: SqlAlchemyStorage) -> bool:
    with contextlib.suppress(Exception):
        return await all_sent(storage)
    return False


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
async def test_strict_default_isolation_disturbs_nobody(
    storage: SqlAlchemyStorage, database: Database, level: str
):
    """R17, finding 17: the relay works at READ COMMITTED whatever the server's default is."""
    if database.name == "mariadb":
        statement = f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}"
        restore = "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    else:
        name = storage.engine.url.database
        statement = (
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level.lower()}'"
        )
        restore = f'ALTER DATABASE "{name}" RESET default_transaction_isolation'
    async with storage.engine.begin() as connection:
        await connection.execute(text(statement))
    try:
        async with SqlAlchemyStorage(database.url) as strict:
            bus = ScriptedBus()
            async with running(projector(strict, bus), projector(strict, bus)):
                await add_many(storage, keyed(100, 10))
                await eventually(lambda: all_sent(storage))
    finally:
        async with storage.engine.begin() as connection:
            await connection.execute(text(restore))

    assert_ordered(bus.published_ids())
    assert_no_duplicates(bus.published_ids())


@each_database
async def test_cancelled_anywhere_the_pool_stays_usable(storage: SqlAlchemyStorage):
    """R21: run_forever is cancelled at random moments; the next one finds sound connections."""
    chance = random.Random(5)
    bus = ScriptedBus()
    for number in range(8):
        await add_many(storage, keyed(20, 4, prefix=f"c{number}x"))
        task = asyncio.create_task(projector(storage, bus).run_forever())
        await asyncio.sleep(chance.random() * 0.15)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    async with running(projector(storage, bus)):
        await eventually(lambda: all_sent(storage))
    await storage.relay.close()

    assert 160 == len(set(bus.published_ids()))
    assert_ordered(bus.published_ids())
    assert 0 == storage.engine.pool.checkedout()


@each_database
async def test_stop_hands_over_at_once(storage: SqlAlchemyStorage):
    """R20: what is in flight is finished and acknowledged, and the partitions are free."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(_messages):
        entered.set()
        await leave.wait()

    bus = ScriptedBus(wait)
    first = projector(storage, bus, lease_seconds=30)
    task = asyncio.create_task(first.run_forever())
    await add(storage, "e1")
    async with asyncio.timeout(10):
        await entered.wait()
    stopping = asyncio.create_task(first.stop())
    await asyncio.sleep(0)
    leave.set()
    async with asyncio.timeout(10):
        await stopping
        await task
    after_stop = (await row(storage, "e1")).status
    bus.script = None
    second = projector(storage, bus, lease_seconds=30)
    await add(storage, "e2")
    async with second:
        sent = await second.run_once()

    assert "SENT" == after_stop
    assert 1 == sent, "the lease of 30 s was not waited for"
    assert ["e1", "e2"] == bus.published_ids()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_overlapping_scopes_wait_and_say_why(storage: SqlAlchemyStorage):
    """A projector of one tenant waits while one of all tenants runs, and takes over after it."""
    bus = InMemoryMessageBus()
    everybody = projector(storage, bus)
    single = projector(storage, bus, tenant_id="default")
    async with running(everybody):
        await eventually(lambda: everybody.is_ready)
        await single.run_once()
        waiting, ready = single.waiting_for, single.is_ready
    await add(storage, "e1")
    async with running(single):
        await eventually(lambda: all_sent(storage))

    assert "'*'" in (waiting or "")
    assert not ready
    assert ["e1"] == bus.published_ids()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_tenants_are_projected_apart(storage: SqlAlchemyStorage):
    """A projector of one tenant leaves the events of others alone."""
    await add(storage, "a1", tenant_id="a")
    await add(storage, "b1", tenant_id="b")
    bus = ScriptedBus()
    async with projector(storage, bus, tenant_id="a") as each:
        await each.run_once()

    assert ["a1"] == bus.published_ids()
    assert {"SENT": 1, "NEW": 1} == await statuses(storage)


def test_second_event_loop_is_refused(sqlite: Database):
    """A projector belongs to the loop that it was first used in."""
    storage = SqlAlchemyStorage(sqlite.url)
    each = projector(storage, InMemoryMessageBus())

    async def once() -> None:
        await storage.initialize()
        try:
            await each.run_once()
        finally:
            await storage.close()

    asyncio.run(once())
    with pytest.raises(ConfigurationError, match="event loop"):
        asyncio.run(once())


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_run_once_sends_what_there_is(storage: SqlAlchemyStorage):
    """It returns the number of confirmed events, and 0 when there is nothing."""
    bus = ScriptedBus()
    await add_many(storage, keyed(30, 3))
    async with projector(storage, bus) as each:
        first, second = await each.run_once(), await each.run_once()

    assert (30, 0) == (first, second)
