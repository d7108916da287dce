"""Leases are measured by one clock, the database's: the processes' own may show anything."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text, type_coerce

from semel.idempotency.keys import scoped_key
from semel.relay import Failure
from semel.sqlalchemy.bus import SqlAlchemyBusStore
from semel.sqlalchemy.bus_groups import Member
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.types import UtcDateTime
from semel.states import Verdict
from semel.testing.contracts.leases import claim_all
from semel.testing.contracts.rows import PARTITIONS, add, instance, unsent
from tests.services import Database

HOUR = 3600
DAY, NOTHING = timedelta(days=1), timedelta(0)


@pytest.fixture(params=[-HOUR, HOUR], ids=["behind", "ahead"])
def skew(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
async def storage(database: Database, skew: int) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage on a database whose clock is an hour off ours."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        if database.name.startswith("postgres"):
            await _shadow_clock(storage, skew)
    async with SqlAlchemyStorage(database.url) as storage:
        if not database.name.startswith("postgres"):
            shift = _shift_sqlite if database.name == "sqlite" else _shift_mariadb
            event.listen(
                storage.engine.sync_engine,
                "connect",
                lambda connection, _: shift(connection, skew),
            )
        async with storage.engine.connect() as connection:
            now = type_coerce(database_of(connection.dialect).now(), UtcDateTime)
            theirs = await connection.scalar(select(now))
        assert abs((theirs - datetime.now(UTC)).total_seconds() - skew) < HOUR / 2
        yield storage


async def _shadow_clock(storage: SqlAlchemyStorage, skew: int) -> None:
    async with storage.engine.begin() as connection:
        await connection.execute(
            text(
                "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
                f"$$ SELECT pg_catalog.clock_timestamp() + interval '{skew} seconds' $$"
            )
        )
        name = storage.engine.url.database
        await connection.execute(
            text(f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
        )


def _shift_sqlite(connection: Any, skew: int) -> None:
    calculator = sqlite3.connect(":memory:", check_same_thread=False)

    def shifted(name: str) -> Any:
        def calculate(*arguments: Any) -> Any:
            if "now" in arguments:
                arguments = (*arguments, f"{skew:+d} seconds")
            marks = ", ".join("?" * len(arguments))
            return calculator.execute(f"SELECT {name}({marks})", arguments).fetchone()[0]

        return calculate

    for name in ("strftime", "julianday"):
        connection.create_function(name, -1, shifted(name))


def _shift_mariadb(connection: Any, skew: int) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET SESSION timestamp = UNIX_TIMESTAMP() + {skew}")
    cursor.close()


async def test_leases_of_projectors(storage: SqlAlchemyStorage) -> None:
    """Failure mode R09: who is alive keeps its partitions, who is dead loses them."""
    alive, dead, heir = instance("alive"), instance("dead", seconds=0.0), instance("heir")
    assert 64 == len(await claim_all(storage, alive))
    assert {} == await claim_all(storage, heir)
    assert 64 == len((await storage.relay.heartbeat(alive)).leases)
    assert {} == await claim_all(storage, heir)
    await storage.relay.retire(alive)
    assert 64 == len(await claim_all(storage, dead))
    assert set(PARTITIONS) == set(await claim_all(storage, heir))


async def test_leases_of_logs(storage: SqlAlchemyStorage) -> None:
    """The same for members of the database bus."""
    store = SqlAlchemyBusStore(storage.engine, notify=False)
    [log] = await store.partitions("t", count=1)

    async def owner_after_claim(name: str, seconds: float) -> str | None:
        member = Member(id=name, topic="t", group="g", lease_seconds=seconds)
        await store.join(member, from_beginning=True)
        await store.heartbeat(member)
        [seat] = await store.claim(member, [log])
        return seat.owner

    try:
        assert "alive" == await owner_after_claim("alive", 60.0)
        assert "alive" == await owner_after_claim("heir", 60.0)
        dying = Member(id="alive", topic="t", group="g", lease_seconds=0.0)
        await store.heartbeat(dying)
        assert "heir" == await owner_after_claim("heir", 60.0)
    finally:
        await store.close()


async def test_leases_of_requests(storage: SqlAlchemyStorage) -> None:
    """A key in use is not taken over, one whose lease has run out is."""

    async def claim(name: str, lease: timedelta) -> Verdict:
        key = scoped_key(name, method="POST", route="/orders", principal="ann")
        store = storage.idempotency
        return (await store.claim(key, fingerprint="f", lease=lease, keep=DAY)).verdict

    assert Verdict.CLAIMED == await claim("k-1", timedelta(minutes=1))
    assert Verdict.IN_FLIGHT == await claim("k-1", timedelta(minutes=1))
    assert Verdict.CLAIMED == await claim("k-2", NOTHING)
    assert Verdict.CLAIMED == await claim("k-2", NOTHING)


async def test_retries(storage: SqlAlchemyStorage) -> None:
    """A retry waits as long as it was told to, whoever reads it."""
    await add(storage, "t")
    projector = instance()
    epochs = await claim_all(storage, projector)
    [entry] = await unsent(storage)
    failure = Failure(entry=entry, attempts=1, error="no", retry_in=60.0)
    assert [entry.sequence] == list(await storage.relay.fail(projector, epochs, [failure]))
    [entry] = await unsent(storage)
    assert entry.wait is not None
    assert 0 < entry.wait <= 60
