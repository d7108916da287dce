"""A connection that the server ends is trouble with the database, wherever it is noticed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from semel import SqlAlchemyStorage
from tests.services import Database

POSTGRES = pytest.mark.parametrize("database", ["postgres", "postgres-psycopg"], indirect=True)


async def end(storage: SqlAlchemyStorage, pid: int) -> None:
    """Let the server end a session, and return when it has."""
    async with storage.engine.connect() as connection:
        await connection.execute(text(f"SELECT pg_terminate_backend({pid}, 10000)"))


async def farewell(session: AsyncSession) -> asyncio.Event:
    """Return what is set when the client has the server's last word."""
    said = asyncio.Event()
    raw = await (await session.connection()).get_raw_connection()
    driver: Any = raw.driver_connection
    if hasattr(driver, "add_termination_listener"):  # asyncpg reads all the time
        driver.add_termination_listener(lambda _: said.set())
    else:  # psycopg reads when it wants something

        def arrived() -> None:
            said.set()
            loop.remove_reader(driver.fileno())

        loop = asyncio.get_running_loop()
        loop.add_reader(driver.fileno(), arrived)
    return said


@POSTGRES
@pytest.mark.parametrize("heard", [False, True])
async def test_fm_d04_a_connection_lost_before_the_tail_is_transient(
    database: Database, heard: bool
):
    """Whether or not the client has heard of it: nothing is blamed on what was written."""
    async with SqlAlchemyStorage(database.url) as storage, SqlAlchemyStorage(database.url) as other:
        await storage.initialize()
        for ends in (False, True):
            async with storage.unit_of_work() as uow:
                pid = await uow.session.scalar(text("SELECT pg_backend_pid()"))
                await uow.outbox.add("orders", {"n": 1}, key="k")
                if not ends:  # what the first commit reads of the database is kept
                    await uow.commit()
                    continue
                said = await farewell(uow.session) if heard else None
                await end(other, pid)
                if said is not None:
                    await asyncio.wait_for(said.wait(), 30)
                with pytest.raises(Exception) as caught:
                    await uow.commit()
            assert storage.is_transient(caught.value), repr(caught.value)
        async with storage.unit_of_work() as uow:  # the pool does not hand it out again
            await uow.outbox.add("orders", {"n": 2}, key="k")
            await uow.commit()


@POSTGRES
async def test_fm_r25_a_wake_up_on_a_lost_connection_is_given_up_quietly(database: Database):
    """The task that sends it ends without an error, and the next one is sent."""
    async with SqlAlchemyStorage(database.url) as storage, SqlAlchemyStorage(database.url) as other:
        await storage.initialize()
        signal = storage.relay._wakeup
        for _ in range(2):
            signal.send()
            assert signal._sender is not None
            await signal._sender
            kept = signal._connection._connection
            assert kept is not None
            await end(other, await kept.scalar(text("SELECT pg_backend_pid()")))
            signal.send()
            await signal._sender
            assert signal._connection._connection is None
