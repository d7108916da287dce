"""Events live and die with their transaction (promise 1), however the session is used."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, InvalidMessageError, NoTransactionError
from semel.sqlalchemy import buffer as write_path
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from tests.services import Database
from tests.stores import shop
from tests.stores.shop import Boom, Order, interrupted

SERVERS = pytest.mark.parametrize(
    "kept", ["postgres", "postgres-psycopg", "mariadb"], indirect=True
)


async def test_finding_02_close_drops_the_buffer(storage: SqlAlchemyStorage) -> None:
    """`close()` fires no rollback event of the session, and the session can be used again."""
    session = storage.session_factory()
    await SqlAlchemyOutbox(session).add("t", 1, event_type="Closed")
    await session.close()
    await SqlAlchemyOutbox(session).add("t", 1, event_type="Kept")
    await session.commit()
    await session.close()
    assert ["Kept"] == await shop.types(storage)


async def test_fm_p01_a_rollback_leaves_neither_row_nor_event(storage: SqlAlchemyStorage) -> None:
    """What comes after the rollback is a transaction of its own."""
    async with storage.session_factory() as session:
        session.add(Order(id="1"))
        await session.flush()
        await SqlAlchemyOutbox(session).add("t", 1, event_type="RolledBack")
        await session.rollback()
        session.add(Order(id="2"))
        await SqlAlchemyOutbox(session).add("t", 1, event_type="Committed")
        await session.commit()
    assert {"2": "new"} == await shop.orders(storage)
    assert ["Committed"] == await shop.types(storage)


async def test_a_second_commit_writes_only_its_own_events(storage: SqlAlchemyStorage) -> None:
    """One outbox object serves all transactions of its session."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        for name in ("First", "Second"):
            await outbox.add("t", 1, event_type=name)
            await session.commit()
        await session.commit()
    assert ["First", "Second"] == await shop.types(storage)


async def test_finding_15_add_begins_the_transaction(storage: SqlAlchemyStorage) -> None:
    """A session that is never flushed commits its events all the same."""
    async with storage.session_factory() as session:
        assert not session.in_transaction()
        await SqlAlchemyOutbox(session).add("t", 1)
        assert session.in_transaction()
        await session.commit()
    assert ["t"] == await shop.types(storage)


async def test_session_begin_as_a_block(storage: SqlAlchemyStorage) -> None:
    """The block's own commit writes the events; an exception in it none."""
    async with storage.session_factory.begin() as session:
        await SqlAlchemyOutbox(session).add("t", 1)
    with interrupted():
        async with storage.session_factory.begin() as session:
            await SqlAlchemyOutbox(session).add("t", 1)
            raise Boom
    assert ["t"] == await shop.types(storage)


async def test_finding_02_listeners_that_come_later_are_heard(storage: SqlAlchemyStorage) -> None:
    """A `before_commit` listener of the application may still add events and change entities."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        order = Order(id="1")
        session.add(order)
        await outbox.add("t", 1, event_type="Before")

        def add_more(_session: Session) -> None:
            outbox.add_nowait("t", 2, event_type="InHook")
            order.status = "changed"

        def on_flush(_session: Session, _context: Any) -> None:
            outbox.add_nowait("t", 3, event_type="InFlush")

        event.listen(session.sync_session, "before_commit", add_more)
        event.listen(session.sync_session, "after_flush", on_flush)
        await session.commit()
    assert {"1": "changed"} == await shop.orders(storage)
    assert ["Before", "InHook", "InFlush"] == await shop.types(storage)


async def test_events_added_in_after_commit_belong_to_the_next_transaction(
    storage: SqlAlchemyStorage,
) -> None:
    """They are not lost silently: SQLAlchemy refuses, as it does with any statement there."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        await outbox.add("t", 1, event_type="First")
        event.listen(
            session.sync_session,
            "after_transaction_end",
            lambda _session, _transaction: outbox.add_nowait("t", 1, event_type="Second"),
            once=True,
        )
        await session.commit()
        await session.commit()
    assert ["First", "Second"] == await shop.types(storage)


async def test_finding_02_autocommit_engines_are_refused(kept: Database) -> None:
    """The business row would commit and the event would not."""
    engine = create_async_engine(kept.url, isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
            await SqlAlchemyOutbox(session).add("t", 1)
    await engine.dispose()


async def test_finding_02_autocommit_connections_are_refused(storage: SqlAlchemyStorage) -> None:
    """Whether the option is on the engine's copy, the connection or the session."""
    copy = storage.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with AsyncSession(copy) as session:
        with pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
            await SqlAlchemyOutbox(session).add("t", 1)
    async with storage.session_factory() as session:
        await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
            await SqlAlchemyOutbox(session).add("t", 1)


async def test_finding_15_autobegin_false_needs_a_begin(storage: SqlAlchemyStorage) -> None:
    """Without a transaction the event would belong to nothing."""
    async with AsyncSession(storage.engine, autobegin=False) as session:
        with pytest.raises(NoTransactionError, match="autobegin=False"):
            await SqlAlchemyOutbox(session).add("t", 1)
        async with session.begin():
            await SqlAlchemyOutbox(session).add("t", 1)
    assert ["t"] == await shop.types(storage)


async def test_add_nowait_needs_a_connection_in_an_async_session(
    storage: SqlAlchemyStorage,
) -> None:
    """It cannot wait for one; after the first `add`, or in `run_sync`, it works."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        with pytest.raises(NoTransactionError, match=r"await outbox\.add"):
            outbox.add_nowait("t", 1)
        await session.run_sync(lambda _: outbox.add_nowait("t", 1, event_type="InGreenlet"))
        outbox.add_nowait("t", 1, event_type="Linked")
        await session.commit()
    assert ["InGreenlet", "Linked"] == await shop.types(storage)


async def test_sync_sessions_add_without_waiting(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """The same rules on psycopg, PyMySQL and sqlite3: commit, rollback, savepoint, close."""
    engine = shop.sync_engine(kept)
    with Session(engine) as session:
        outbox = SqlAlchemyOutbox(session, "acme")
        session.add(Order(id="1"))
        outbox.add_nowait("t", {"n": 1}, event_type="Committed", key="k")
        outbox.put_nowait(MessageEnvelope(topic="t", payload=2, event_type="Put"))
        with interrupted(), session.begin_nested():
            outbox.add_nowait("t", 1, event_type="Savepoint")
            raise Boom
        session.commit()
        outbox.add_nowait("t", 1, event_type="RolledBack")
        session.rollback()
        outbox.add_nowait("t", 1, event_type="Closed")
    engine.dispose()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["Committed", "Put"] == await shop.types(storage)
    assert "acme" == (await shop.rows(storage))[0].tenant_id


async def test_fm_p12_bulk_statements_emit_nothing(storage: SqlAlchemyStorage) -> None:
    """`session.execute(insert(...))` makes no entities: add events beside it explicitly."""
    async with storage.session_factory() as session:
        await session.execute(insert(Order), [{"id": "1"}, {"id": "2"}])
        await SqlAlchemyOutbox(session).add("t", 2, event_type="Imported")
        await session.commit()
    assert {"1", "2"} == set(await shop.orders(storage))
    assert ["Imported"] == await shop.types(storage)


@SERVERS
async def test_fm_p14_entities_and_events_in_different_databases_are_refused(
    storage: SqlAlchemyStorage, another: SqlAlchemyStorage
) -> None:
    """Two engines commit one after the other: between them a crash would lose the event."""
    factory = async_sessionmaker(binds={Order: another.engine, OutboxRecord: storage.engine})
    async with factory() as session:
        await SqlAlchemyOutbox(session).add("t", 1)
        session.add(Order(id="1"))
        with pytest.raises(ConfigurationError, match="different engines"):
            await session.commit()
    assert {} == await shop.orders(storage)
    assert [] == await shop.types(storage)


@SERVERS
async def test_fm_p14_the_flush_may_come_first(
    storage: SqlAlchemyStorage, another: SqlAlchemyStorage
) -> None:
    """The refusal then comes at `add`."""
    factory = async_sessionmaker(binds={Order: another.engine, OutboxRecord: storage.engine})
    async with factory() as session:
        session.add(Order(id="1"))
        await session.flush()
        with pytest.raises(ConfigurationError, match="different engines"):
            await SqlAlchemyOutbox(session).add("t", 1)
    assert [] == await shop.types(storage)


async def test_engines_made_by_execution_options_are_the_same_engine(
    storage: SqlAlchemyStorage,
) -> None:
    """Their commits wake the projectors of the first one."""
    woken: list[None] = []
    unsubscribe = storage.relay.subscribe(lambda: woken.append(None))
    async with AsyncSession(storage.engine.execution_options(any_option=1)) as session:
        await SqlAlchemyOutbox(session).add("t", 1)
        await session.commit()
    unsubscribe()
    assert [None] == woken


async def test_buffers_do_not_outlive_their_connections(storage: SqlAlchemyStorage) -> None:
    """Nothing is left behind by any way to end a transaction."""
    gc.collect()
    before = len(write_path._buffers)
    for end in ("commit", "rollback", "close"):
        session = storage.session_factory()
        await SqlAlchemyOutbox(session).add("t", 1)
        await getattr(session, end)()
        await session.close()
        del session
    gc.collect()
    assert before == len(write_path._buffers)


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
async def test_what_is_no_session_is_refused(storage: SqlAlchemyStorage) -> None:
    """With the name of what is needed."""
    for wrong in (storage.engine, storage, None):
        with pytest.raises(ConfigurationError, match="AsyncSession or a Session"):
            SqlAlchemyOutbox(wrong)  # type: ignore[arg-type]
    async with storage.session_factory() as session:
        for tenant in (7, "", "x" * 65, None):
            with pytest.raises(InvalidMessageError, match="tenant_id"):
                SqlAlchemyOutbox(session, tenant)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
def test_a_storage_needs_an_asynchronous_engine(kept: Database) -> None:
    """And says so of engines, addresses and factories."""
    sync = create_engine("sqlite://")
    for wrong, said in (
        (sync, "not Engine"),
        ("sqlite:///x.db", "not asynchronous"),
        ("not a url", "no database URL"),
        ("oracle+nothing://h/d", "knows no oracle"),
        (async_sessionmaker(), "has no engine"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            SqlAlchemyStorage(wrong)  # type: ignore[arg-type]
    sync.dispose()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:///:memory:",
        "sqlite+aiosqlite:///file::memory:?uri=true",
        "sqlite+aiosqlite:///file:x?mode=memory&uri=true",
    ],
)
def test_sqlite_in_memory_is_refused(url: str) -> None:
    """All tasks would share one connection, and one transaction."""
    with pytest.raises(ConfigurationError, match="in memory"):
        SqlAlchemyStorage(url)


async def test_raw_sql_in_the_same_transaction_commits_with_the_events(
    storage: SqlAlchemyStorage,
) -> None:
    """Whatever the caller did before is part of it."""
    async with storage.session_factory() as session:
        await session.execute(text("INSERT INTO orders (id, status) VALUES ('1', 'raw')"))
        await SqlAlchemyOutbox(session).add("t", 1)
        await session.commit()
    assert {"1": "raw"} == await shop.orders(storage)
    assert ["t"] == await shop.types(storage)
