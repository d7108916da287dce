"""Events follow savepoints, two-phase commits and transactions that were begun outside."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database
from tests.stores import shop
from tests.stores.shop import Boom, Order, interrupted

MODES = ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]


async def test_fm_p02_a_savepoint_rolled_back_drops_its_events(storage: SqlAlchemyStorage) -> None:
    """Also when nothing but the event happened inside, so that no SAVEPOINT was sent."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        await outbox.add("t", 1, event_type="Before")
        with interrupted():
            async with session.begin_nested():
                await outbox.add("t", 1, event_type="OnlyEvent")
                raise Boom
        with interrupted():
            async with session.begin_nested():
                session.add(Order(id="1"))
                await session.flush()
                await outbox.add("t", 1, event_type="WithRow")
                raise Boom
        await outbox.add("t", 1, event_type="After")
        await session.commit()
    assert {} == await shop.orders(storage)
    assert ["Before", "After"] == await shop.types(storage)


async def test_fm_p02_the_first_event_may_be_inside_the_savepoint(
    storage: SqlAlchemyStorage,
) -> None:
    """The transaction had no buffer when the savepoint began."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        session.add(Order(id="1"))
        with interrupted():
            async with session.begin_nested():
                await outbox.add("t", 1, event_type="Dropped")
                raise Boom
        await session.commit()
        async with session.begin_nested():
            await outbox.add("t", 1, event_type="Kept")
        await session.commit()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["Kept"] == await shop.types(storage)


async def test_a_savepoint_released_hands_its_events_to_its_parent(
    storage: SqlAlchemyStorage,
) -> None:
    """They share the parent's fate, at every level."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        async with session.begin_nested():
            await outbox.add("t", 1, event_type="Outer")
            async with session.begin_nested():
                await outbox.add("t", 1, event_type="Inner")
            with interrupted():
                async with session.begin_nested():
                    await outbox.add("t", 1, event_type="InnerDropped")
                    raise Boom
            await outbox.add("t", 1, event_type="OuterAgain")
        with interrupted():
            async with session.begin_nested():
                await outbox.add("t", 1, event_type="Dropped")
                async with session.begin_nested():
                    await outbox.add("t", 1, event_type="ReleasedIntoDropped")
                raise Boom
        await session.commit()
    assert ["Outer", "Inner", "OuterAgain"] == await shop.types(storage)


async def test_a_savepoint_ended_by_hand(storage: SqlAlchemyStorage) -> None:
    """`rollback()` and `commit()` of the nested transaction mean the same as its block."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        await outbox.add("t", 1, event_type="Before")
        nested = await session.begin_nested()
        await outbox.add("t", 1, event_type="Dropped")
        await nested.rollback()
        nested = await session.begin_nested()
        await outbox.add("t", 1, event_type="Kept")
        await nested.commit()
        await session.begin_nested()
        await outbox.add("t", 1, event_type="CommittedByTheRoot")
        await session.commit()
        await session.commit()
    assert ["Before", "Kept", "CommittedByTheRoot"] == await shop.types(storage)


async def test_a_flush_that_fails_in_a_savepoint(storage: SqlAlchemyStorage) -> None:
    """The usual way to survive a duplicate key."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        session.add(Order(id="1"))
        await outbox.add("t", 1, event_type="First")
        nested = await session.begin_nested()
        await outbox.add("t", 1, event_type="Duplicate")
        with pytest.raises(IntegrityError):
            await session.execute(insert(Order).values(id="1"))
        await nested.rollback()
        await outbox.add("t", 1, event_type="After")
        await session.commit()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["First", "After"] == await shop.types(storage)


async def test_finding_02_core_savepoints_count_too(storage: SqlAlchemyStorage) -> None:
    """A savepoint of the session's connection drops what was added since it began."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        connection = await session.connection()
        first = await connection.begin_nested()
        await outbox.add("t", 1, event_type="DroppedFirst")
        await first.rollback()
        await outbox.add("t", 1, event_type="Between")
        second = await connection.begin_nested()
        await outbox.add("t", 1, event_type="DroppedByOuter")
        inner = await connection.begin_nested()
        await outbox.add("t", 1, event_type="ReleasedInner")
        await inner.commit()
        await second.rollback()
        third = await connection.begin_nested()
        await outbox.add("t", 1, event_type="Released")
        await third.commit()
        await session.commit()
    assert ["Between", "Released"] == await shop.types(storage)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outer", ["commit", "rollback"])
async def test_finding_02_a_session_joined_to_an_outer_transaction(
    storage: SqlAlchemyStorage, mode: str, outer: str
) -> None:
    """Row and event share one fate, whoever decides it, and the event is written once."""
    async with storage.engine.connect() as connection:
        transaction = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode=mode) as session:
            session.add(Order(id="1"))
            await SqlAlchemyOutbox(session).add("t", 1, event_type="Joined")
            await session.commit()
            if mode != "control_fully":
                assert 0 == await connection.scalar(text("SELECT count(*) FROM outbox"))
        if transaction.is_active:
            await getattr(transaction, outer)()
    expected = outer == "commit" or mode == "control_fully"
    assert ({"1": "new"} if expected else {}) == await shop.orders(storage)
    assert (["Joined"] if expected else []) == await shop.types(storage)


async def test_fm_p01_a_connection_used_again_after_a_rollback(storage: SqlAlchemyStorage) -> None:
    """Its next transaction has nothing of the one before."""
    async with storage.engine.connect() as connection:
        for outer in ("rollback", "commit"):
            transaction = await connection.begin()
            async with AsyncSession(connection, join_transaction_mode="rollback_only") as session:
                session.add(Order(id=outer))
                await SqlAlchemyOutbox(session).add("t", 1, event_type=outer)
                await session.commit()
            await getattr(transaction, outer)()
    assert {"commit": "new"} == await shop.orders(storage)
    assert ["commit"] == await shop.types(storage)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["rollback", "close"])
async def test_a_joined_session_that_gives_up(
    storage: SqlAlchemyStorage, mode: str, end: str
) -> None:
    """What it flushed and what it added go together: SQLAlchemy decides by the mode."""
    async with storage.engine.connect() as connection:
        transaction = await connection.begin()
        session = AsyncSession(connection, join_transaction_mode=mode)
        session.add(Order(id="1"))
        await session.flush()
        await SqlAlchemyOutbox(session).add("t", 1, event_type="GivenUp")
        await getattr(session, end)()
        await session.close()
        if transaction.is_active:
            await transaction.commit()
    survived = set(await shop.orders(storage))
    assert ({"1"} if end == "close" and mode in MODES[:2] else set()) == survived
    assert (["GivenUp"] if survived else []) == await shop.types(storage)


@pytest.mark.parametrize("mode", MODES)
async def test_a_session_joined_to_a_savepoint(storage: SqlAlchemyStorage, mode: str) -> None:
    """The outer savepoint is rolled back after the session has committed into it."""
    async with storage.engine.begin() as connection:
        savepoint = await connection.begin_nested()
        async with AsyncSession(connection, join_transaction_mode=mode) as session:
            session.add(Order(id="1"))
            await SqlAlchemyOutbox(session).add("t", 1, event_type="Joined")
            await session.commit()
        if savepoint.is_active:
            await savepoint.rollback()
    survived = set(await shop.orders(storage))
    assert ({"1"} if mode == "control_fully" else set()) == survived
    assert (["Joined"] if survived else []) == await shop.types(storage)


async def test_two_sessions_in_one_outer_transaction(storage: SqlAlchemyStorage) -> None:
    """All events are written by the outer commit, in the order of adding."""
    async with storage.engine.begin() as connection:
        for name in ("One", "Two"):
            async with AsyncSession(connection) as session:
                await SqlAlchemyOutbox(session).add("t", 1, event_type=name)
                await session.commit()
    assert ["One", "Two"] == await shop.types(storage)


async def test_an_outer_commit_wakes_projectors(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the connection goes back to the pool, or begins anew; not after a rollback."""
    # What comes back from the server as a notification would count a second time.
    monkeypatch.setattr(storage.relay._wakeup, "_notifies", False)
    woken: list[str] = []
    unsubscribe = storage.relay.subscribe(lambda: woken.append("up"))
    async with storage.engine.connect() as connection:
        for end in ("rollback", "commit", "commit"):
            transaction = await connection.begin()
            async with AsyncSession(connection) as session:
                await SqlAlchemyOutbox(session).add("t", 1)
                await session.commit()
            await getattr(transaction, end)()
    unsubscribe()
    assert ["up", "up"] == woken
    assert 2 == len(await shop.rows(storage))


TWO_PHASE = pytest.mark.parametrize("kept", ["postgres-psycopg", "mariadb"], indirect=True)


@TWO_PHASE
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_two_phase_sessions(storage: SqlAlchemyStorage, kept: Database, end: str) -> None:
    """The events are written by `prepare()`; its outcome is theirs."""
    engine = shop.sync_engine(kept)
    with Session(engine, twophase=True) as session:
        session.add(Order(id="1"))
        SqlAlchemyOutbox(session).add_nowait("t", 1, key="k", event_type="TwoPhase")
        session.prepare()
        assert [] == await shop.types(storage)
        getattr(session, end)()
    engine.dispose()
    expected = end == "commit"
    assert ({"1": "new"} if expected else {}) == await shop.orders(storage)
    assert (["TwoPhase"] if expected else []) == await shop.types(storage)


@TWO_PHASE
async def test_two_phase_without_an_explicit_prepare(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """`commit()` prepares by itself, and the session can go on."""
    engine = shop.sync_engine(kept)
    with Session(engine, twophase=True) as session:
        for number in range(2):
            session.add(Order(id=str(number)))
            SqlAlchemyOutbox(session).add_nowait("t", 1, key="k", event_type=f"Number{number}")
            session.commit()
    engine.dispose()
    assert {"0", "1"} == set(await shop.orders(storage))
    assert ["Number0", "Number1"] == await shop.types(storage)


@TWO_PHASE
async def test_core_two_phase_transactions(storage: SqlAlchemyStorage, kept: Database) -> None:
    """A session joined to one hands its events over."""
    engine = shop.sync_engine(kept)
    with engine.connect() as connection:
        for end in ("commit", "rollback"):
            transaction = connection.begin_twophase()
            with Session(connection, join_transaction_mode="rollback_only") as session:
                SqlAlchemyOutbox(session).add_nowait("t", 1, event_type=end)
                session.commit()
            transaction.prepare()
            getattr(transaction, end)()
    engine.dispose()
    assert ["commit"] == await shop.types(storage)
