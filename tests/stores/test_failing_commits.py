"""A commit that fails leaves nothing behind, and the caller's retry exactly what it committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, event, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from semel.errors import StorageError
from semel.sqlalchemy.dialects import postgresql_sql
from semel.sqlalchemy.layout import SLOTS
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.rows import slot_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database
from tests.stores import shop
from tests.stores.shop import Order

SERVERS = pytest.mark.parametrize(
    "kept", ["postgres", "postgres-psycopg", "mariadb"], indirect=True
)
POSTGRES = pytest.mark.parametrize("kept", ["postgres", "postgres-psycopg"], indirect=True)
MARIADB = pytest.mark.parametrize("kept", ["mariadb"], indirect=True)
REFUSED = (StorageError, InvalidRequestError, PendingRollbackError)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait 200 ms for a slot on PostgreSQL."""
    postgresql_sql.write_sql.cache_clear()
    monkeypatch.setattr(postgresql_sql, "_LOCK_TIMEOUT", "200ms")
    yield
    postgresql_sql.write_sql.cache_clear()


async def commit_again(session: AsyncSession) -> None:
    """A caller that swallows the error and commits once more must not succeed."""
    with pytest.raises(REFUSED):
        await session.commit()


async def test_fm_p04_a_duplicate_id_fails_the_whole_transaction(
    storage: SqlAlchemyStorage,
) -> None:
    """Nothing of it is durable, a second commit is refused, and after a rollback all works."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        await outbox.add("t", 1, event_id="e-1", event_type="First")
        await session.commit()
        session.add(Order(id="1"))
        await outbox.add("t", 1, event_type="Innocent")
        await outbox.add("t", 1, event_id="e-1", event_type="Duplicate")
        with pytest.raises(IntegrityError):
            await session.commit()
        await commit_again(session)
        await session.rollback()
        session.add(Order(id="2"))
        await outbox.add("t", 1, event_type="After")
        await session.commit()
    assert {"2": "new"} == await shop.orders(storage)
    assert ["First", "After"] == await shop.types(storage)


async def test_fm_p04_one_id_twice_in_a_transaction(storage: SqlAlchemyStorage) -> None:
    """The database's unique key decides, not the buffer."""
    async with storage.session_factory() as session:
        for _ in range(2):
            await SqlAlchemyOutbox(session).add("t", 1, event_id="e-1")
        with pytest.raises(IntegrityError):
            await session.commit()
    assert [] == await shop.types(storage)


async def test_a_joined_session_poisons_the_outer_transaction(storage: SqlAlchemyStorage) -> None:
    """The outer commit raises; the connection can be used again after its rollback."""
    async with storage.engine.connect() as connection:
        await connection.begin()
        async with AsyncSession(connection) as session:
            session.add(Order(id="1"))
            for _ in range(2):
                await SqlAlchemyOutbox(session).add("t", 1, event_id="e-1")
            await session.commit()
        with pytest.raises(IntegrityError):
            await connection.commit()
        with pytest.raises(REFUSED):
            await connection.commit()
        await connection.rollback()
        async with AsyncSession(connection) as session:
            await SqlAlchemyOutbox(session).add("t", 1, event_type="After")
            await session.commit()
        await connection.commit()
    assert {} == await shop.orders(storage)
    assert ["After"] == await shop.types(storage)


@pytest.mark.parametrize("kept", ["postgres-psycopg", "mariadb"], indirect=True)
async def test_a_two_phase_prepare_that_fails(storage: SqlAlchemyStorage, kept: Database) -> None:
    """The session is rolled back at once, by SQLAlchemy: a second commit commits nothing."""
    engine = shop.sync_engine(kept)
    with Session(engine, twophase=True) as session:
        session.add(Order(id="1"))
        for _ in range(2):
            SqlAlchemyOutbox(session).add_nowait("t", 1, event_id="e-1")
        with pytest.raises(IntegrityError):
            session.commit()
        session.commit()
        SqlAlchemyOutbox(session).add_nowait("t", 1, event_type="After")
        session.commit()
    engine.dispose()
    assert {} == await shop.orders(storage)
    assert ["After"] == await shop.types(storage)


@MARIADB
async def test_finding_03_a_deadlock_in_the_tail(storage: SqlAlchemyStorage) -> None:
    """InnoDB rolls the victim back behind SQLAlchemy's back (1213): no event may survive alone.

    The first holds a row and wants the slot, the second holds the slot and wants the row; the
    second has changed more, so the first is the victim.
    """
    slot = slot_of("default", "k", SLOTS)
    async with storage.session_factory.begin() as session:
        session.add_all([Order(id=f"{number}") for number in range(50)])
    async with storage.session_factory() as session, storage.engine.connect() as other:
        await session.execute(update(Order).where(Order.id == "1").values(status="mine"))
        await SqlAlchemyOutbox(session).add("t", 1, key="k", event_type="Victim")
        await other.execute(text(f"SELECT slot FROM outbox_slot WHERE slot = {slot} FOR UPDATE"))
        await other.execute(update(Order).where(Order.id > "2").values(status="theirs"))
        commit = asyncio.create_task(session.commit())
        async with storage.engine.connect() as watch:
            await shop.until(lambda: shop.someone_waits(watch))
        await other.execute(update(Order).where(Order.id == "1").values(status="theirs"))
        async with asyncio.timeout(shop.PATIENCE):
            with pytest.raises(DBAPIError) as caught:
                await commit
        assert 1213 == caught.value.orig.args[0]  # type: ignore[union-attr]
        assert storage.is_transient(caught.value)
        await commit_again(session)
        await session.rollback()
        await other.commit()
        await SqlAlchemyOutbox(session).add("t", 1, key="k", event_type="Retried")
        await session.commit()
    assert "theirs" == (await shop.orders(storage))["1"]
    assert ["Retried"] == await shop.types(storage)


@MARIADB
async def test_fm_d03_a_lock_timeout_in_the_tail(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InnoDB undoes only the statement (1205): the rest must not become durable without it."""
    monkeypatch.setattr("semel.sqlalchemy.dialects.mysql._LOCK_SECONDS", 1)
    async with shop.stalled_commit(storage, key="k"), storage.session_factory() as session:
        session.add(Order(id="1"))
        await SqlAlchemyOutbox(session).add("t", 1, key="k", event_type="TimedOut")
        with pytest.raises(DBAPIError) as caught:
            await session.commit()
        assert 1205 == caught.value.orig.args[0]  # type: ignore[union-attr]
        await commit_again(session)
        await session.rollback()
    assert {} == await shop.orders(storage)
    assert ["stalled"] == await shop.types(storage)


@POSTGRES
async def test_finding_07_a_slot_is_not_waited_for_for_ever(
    storage: SqlAlchemyStorage, short_patience: None
) -> None:
    """`lock_timeout` ends the wait (55P03); the transaction leaves nothing."""
    async with shop.stalled_commit(storage, key="k"), storage.session_factory() as session:
        session.add(Order(id="1"))
        await SqlAlchemyOutbox(session).add("t", 1, key="k", event_type="TimedOut")
        with pytest.raises(DBAPIError) as caught:
            await session.commit()
        assert "55P03" == caught.value.orig.sqlstate  # type: ignore[union-attr]
        assert storage.is_transient(caught.value)
        await commit_again(session)
        await session.rollback()
    assert {} == await shop.orders(storage)
    assert ["stalled"] == await shop.types(storage)


@POSTGRES
async def test_finding_07_a_lost_host_cannot_hold_a_slot(storage: SqlAlchemyStorage) -> None:
    """The tail sets both time-outs for its own transaction, and only for it."""
    seen: list[tuple[str, str]] = []
    query = text(
        "SELECT current_setting('lock_timeout'), "
        "current_setting('idle_in_transaction_session_timeout')"
    )

    def look(connection: Connection) -> None:
        seen.append(tuple(connection.execute(query).one()))

    event.listen(storage.engine.sync_engine, "commit", look)
    async with storage.session_factory() as session:
        await SqlAlchemyOutbox(session).add("t", 1, key="k")
        await session.commit()
        event.remove(storage.engine.sync_engine, "commit", look)
        after = tuple((await session.execute(query)).one())
    assert [("10s", "30s")] == seen
    assert ("0", "0") == after


@POSTGRES
async def test_fm_p13_a_serialization_failure_retried_by_the_caller(
    storage: SqlAlchemyStorage,
) -> None:
    """40001 at a statement or at COMMIT: exactly the committed attempt's events exist."""
    async with storage.session_factory.begin() as session:
        session.add_all([Order(id="a", status="0"), Order(id="b", status="0")])
    engine = storage.engine.execution_options(isolation_level="SERIALIZABLE")
    transient: list[bool] = []

    async def move(read: str, write: str) -> None:
        for attempt in range(20):
            async with AsyncSession(engine) as session:
                try:
                    await session.scalar(select(Order.status).where(Order.id == read))
                    await asyncio.sleep(0.02)
                    await session.execute(
                        update(Order).where(Order.id == write).values(status=str(attempt + 1))
                    )
                    await SqlAlchemyOutbox(session).add("t", 1, key=write, event_type=write)
                    await session.commit()
                except DBAPIError as error:
                    transient.append(storage.is_transient(error))
                    await session.rollback()
                else:
                    return
        pytest.fail("never committed")

    async with asyncio.timeout(shop.PATIENCE):
        await asyncio.gather(move("a", "b"), move("b", "a"), move("a", "b"), move("b", "a"))
    assert {True} == set(transient), "no attempt failed: the test proves nothing"
    assert ["a", "a", "b", "b"] == sorted(await shop.types(storage))


@MARIADB
async def test_fm_d01_a_deadlock_before_the_tail_retried(storage: SqlAlchemyStorage) -> None:
    """The victim's events are gone with it, the retry's are there once."""
    async with storage.session_factory.begin() as session:
        session.add_all([Order(id="a"), Order(id="b")])
    failures: list[int] = []
    both = asyncio.Barrier(2)

    async def move(first: str, second: str) -> None:
        waits = True
        while True:
            async with storage.session_factory() as session:
                try:
                    await SqlAlchemyOutbox(session).add("t", 1, key="k", event_type=first)
                    await session.execute(
                        update(Order).where(Order.id == first).values(status=first)
                    )
                    if waits:
                        waits = False
                        await both.wait()
                    await session.execute(
                        update(Order).where(Order.id == second).values(status=first)
                    )
                    await session.commit()
                except DBAPIError as error:
                    failures.append(error.orig.args[0])  # type: ignore[union-attr]
                    await session.rollback()
                else:
                    return

    async with asyncio.timeout(shop.PATIENCE):
        await asyncio.gather(move("a", "b"), move("b", "a"))
    assert [1213] == failures
    assert ["a", "b"] == sorted(await shop.types(storage))


@SERVERS
async def test_fm_p03_a_connection_lost_at_the_commit(storage: SqlAlchemyStorage) -> None:
    """The commit raises, the session works after a rollback, nobody is woken for nothing."""
    woken: list[None] = []
    unsubscribe = storage.relay.subscribe(lambda: woken.append(None))
    order = Order(id="1")
    order.emit("Placed")

    def cut(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            own = connection.scalar(text("SELECT pg_backend_pid()"))
            sql = f"SELECT pg_terminate_backend({own})"
        else:
            own = connection.scalar(text("SELECT CONNECTION_ID()"))
            sql = f"KILL {own}"
        with killer.connect() as other:
            other.execute(text(sql))

    url = storage.engine.url.set(
        drivername="postgresql+psycopg"
        if storage.engine.dialect.name == "postgresql"
        else "mysql+pymysql"
    )
    killer = shop.create_engine(url)
    async with storage.session_factory() as session:
        event.listen(storage.engine.sync_engine, "commit", cut)
        session.add(order)
        uow = storage.unit_of_work(session=session)
        async with uow:
            uow.track(order)
            await uow.commit()
            with pytest.raises(DBAPIError) as caught:
                await session.commit()
            assert storage.is_transient(caught.value)
            event.remove(storage.engine.sync_engine, "commit", cut)
            await session.rollback()
            assert [] == woken
            assert 1 == len(order.pending_events)
            session.add(order)
            uow.track(order)
            await uow.commit()
            await session.commit()
    killer.dispose()
    unsubscribe()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["Placed"] == await shop.types(storage)
    assert () == order.pending_events
    assert [None] == woken


@POSTGRES
async def test_finding_18_deferred_constraints_are_checked_before_the_locks(
    storage: SqlAlchemyStorage,
) -> None:
    """Checked by COMMIT they would wait for other writers while the slots are held: a deadlock.

    The first waits for the second's parent row; the second must get the slot all the same.
    """
    async with storage.engine.begin() as connection:
        for statement in (
            "DROP TABLE IF EXISTS child, parent",
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "CREATE TABLE child (parent_id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO parent VALUES (1)",
        ):
            await connection.execute(text(statement))
    # The answer whether there are such constraints is kept per engine.
    async with SqlAlchemyStorage(storage.engine.url) as fresh:
        first, second = fresh.session_factory(), fresh.session_factory()
        async with first, second, fresh.engine.connect() as watch:
            await second.execute(text("DELETE FROM parent"))
            await SqlAlchemyOutbox(second).add("t", 1, key="k", event_type="Second")
            await first.execute(text("INSERT INTO child VALUES (1)"))
            await SqlAlchemyOutbox(first).add("t", 1, key="k", event_type="First")
            waiting = asyncio.create_task(first.commit())
            await shop.until(lambda: shop.someone_waits(watch))
            async with asyncio.timeout(5):
                await second.commit()
                with pytest.raises(IntegrityError):
                    await waiting
    async with storage.engine.begin() as connection:
        await connection.execute(text("DROP TABLE child, parent"))
    assert ["Second"] == await shop.types(storage)
