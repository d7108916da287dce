"""Domain events of entities are written with their entities, and undone with their changes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from semel.aggregate import PendingEvent
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError
from semel.sqlalchemy.listener import collect_events_on_flush
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database
from tests.stores import shop
from tests.stores.shop import Boom, Line, Order, interrupted

Factory = async_sessionmaker[AsyncSession]


@pytest.fixture
async def factory(storage: SqlAlchemyStorage) -> Factory:
    """Sessions that collect, and one order that is there already."""
    factory = async_sessionmaker(storage.engine, expire_on_commit=False)
    collect_events_on_flush(factory)
    async with factory.begin() as session:
        session.add(Order(id="old"))
    return factory


async def test_new_entities(storage: SqlAlchemyStorage, factory: Factory) -> None:
    """In the order of their events; the aggregate and its topic come from the entity."""
    order = Order(id="1")
    order.emit("Placed", n=1)
    order.emit("Paid", n=2)
    async with factory.begin() as session:
        session.add(order)
    assert () == order.pending_events
    rows = await shop.rows(storage)
    assert [("Placed", {"n": 1}), ("Paid", {"n": 2})] == [(r.event_type, r.payload) for r in rows]
    assert {("orders", "Order", "1", "Order:1")} == {
        (r.topic, r.aggregate_type, r.aggregate_id, r.order_key) for r in rows
    }


async def test_an_id_that_the_database_gives(storage: SqlAlchemyStorage, factory: Factory) -> None:
    """Is known after the flush, which is early enough."""
    async with factory.begin() as session:
        line = Line()
        line.add_event({"n": 1}, event_type="Added")
        session.add(line)
    [row] = await shop.rows(storage)
    assert str(line.id) == row.aggregate_id


async def test_finding_04_changed_deleted_and_unchanged_entities(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """An event needs no change of a column beside it."""
    async with factory.begin() as session:
        session.add_all([Order(id="changed"), Order(id="deleted")])
    async with factory.begin() as session:
        for name in ("changed", "deleted", "old"):
            order = await session.get_one(Order, name)
            order.emit(name)
            if name == "changed":
                order.status = "other"
            elif name == "deleted":
                await session.delete(order)
    assert {"changed": "other", "old": "new"} == await shop.orders(storage)
    assert ["changed", "deleted", "old"] == sorted(await shop.types(storage))


async def test_finding_04_an_event_after_the_delete_was_flushed(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """The entity is in no collection of the session any more."""
    async with factory.begin() as session:
        order = await session.get_one(Order, "old")
        await session.delete(order)
        await session.flush()
        order.emit("Deleted")
    assert {} == await shop.orders(storage)
    assert ["Deleted"] == await shop.types(storage)


async def test_finding_04_an_entity_that_nobody_refers_to(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """A session holds unchanged entities weakly; one with events must not be collected."""
    async with factory.begin() as session:
        (await session.get_one(Order, "old")).emit("Forgotten")
        gc.collect()
    assert ["Forgotten"] == await shop.types(storage)


async def test_finding_04_events_added_in_before_commit(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """By a listener that was registered after ours, on a changed and on an unchanged entity."""
    async with factory() as session:
        order = await session.get_one(Order, "old")

        def late(_session: Session) -> None:
            order.emit("InBeforeCommit")

        event.listen(session.sync_session, "before_commit", late, once=True)
        await session.commit()
        assert ["InBeforeCommit"] == await shop.types(storage)
        order.emit("Flushed")
        await session.flush()
        order.emit("AfterTheFlush")
        await session.commit()
    assert ["InBeforeCommit", "Flushed", "AfterTheFlush"] == await shop.types(storage)


async def test_events_are_written_once(storage: SqlAlchemyStorage, factory: Factory) -> None:
    """However often the session is flushed, and not again by the next commit."""
    async with factory() as session:
        order = Order(id="1")
        session.add(order)
        for name in ("One", "Two", "Three"):
            order.emit(name)
            order.status = name
            await session.flush()
        await session.commit()
        order.status = "later"
        await session.commit()
    assert ["One", "Two", "Three"] == await shop.types(storage)


async def test_a_ready_made_envelope_is_written_once(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """As it is: with its own id, tenant and key."""
    envelope = MessageEnvelope(topic="t", payload=1, tenant_id="acme", key="k", event_id="e-1")
    async with factory.begin() as session:
        order = Order(id="1")
        order.add_event(envelope)
        session.add(order)
        await session.flush()
        order.status = "changed"
    assert () == order.pending_events
    assert [("e-1", "acme", "k")] == [
        (row.id, row.tenant_id, row.order_key) for row in await shop.rows(storage)
    ]


async def test_finding_04_a_retry_with_the_same_object_keeps_its_events(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """The first commit fails after its flush; the object is added again."""
    order = Order(id="1")
    order.emit("Placed")
    async with factory() as session:
        session.add_all([order, Line(id=1, order_id=None)])
        await session.flush()
        with pytest.raises(IntegrityError):
            await session.execute(Order.__table__.insert().values(id="old"))
        await session.rollback()
        assert ["Placed"] == [item.options["event_type"] for item in order.pending_events]
        session.add(order)
        await session.commit()
    assert {"1", "old"} == set(await shop.orders(storage))
    assert ["Placed"] == await shop.types(storage)
    assert () == order.pending_events


async def test_finding_04_a_failed_commit_empties_no_list(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """Nor does a commit of something else on the same session afterwards."""
    order = Order(id="1")
    order.emit("Placed")

    def fail(_connection: Any) -> None:
        raise Boom

    async with factory() as session:
        session.add(order)
        event.listen(storage.engine.sync_engine, "commit", fail)
        with pytest.raises(Boom):
            await session.commit()
        event.remove(storage.engine.sync_engine, "commit", fail)
        await session.rollback()
        session.add(Order(id="2"))
        await session.commit()
        assert 1 == len(order.pending_events)
        session.add(order)
        await session.commit()
    assert {"1", "2", "old"} == set(await shop.orders(storage))
    assert ["Placed"] == await shop.types(storage)


async def test_a_rollback_undoes_events_of_stored_entities(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """Their changes are undone, so a later commit must not tell of them."""
    async with factory() as session:
        order = await session.get_one(Order, "old")
        order.status = "cancelled"
        order.emit("Cancelled")
        await session.flush()
        await session.rollback()
        assert () == order.pending_events
        await session.refresh(order)
        order.status = "paid"
        order.emit("Paid")
        await session.commit()
    assert {"old": "paid"} == await shop.orders(storage)
    assert ["Paid"] == await shop.types(storage)


async def test_fm_p02_a_savepoint_undoes_the_events_inside(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """Those before it and after it stay, flushed or not."""
    async with factory() as session:
        order = await session.get_one(Order, "old")
        order.emit("Before")
        with interrupted():
            async with session.begin_nested():
                order.status = "inside"
                order.emit("Flushed")
                await session.flush()
                order.emit("NotFlushed")
                raise Boom
        await session.refresh(order)
        order.emit("After")
        async with session.begin_nested():
            order.emit("Released")
        await session.commit()
        order.status = "again"
        await session.commit()
    assert {"old": "again"} == await shop.orders(storage)
    assert ["Before", "After", "Released"] == await shop.types(storage)


async def test_a_retry_of_a_savepoint_with_the_same_new_object(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """The object left the session with the savepoint; added again it brings its events."""
    order = Order(id="1")
    order.emit("Placed")
    async with factory() as session:
        with interrupted():
            async with session.begin_nested():
                session.add(order)
                await session.flush()
                raise Boom
        session.add(order)
        await session.commit()
    assert {"1", "old"} == set(await shop.orders(storage))
    assert ["Placed"] == await shop.types(storage)


async def test_an_object_of_a_dropped_savepoint_keeps_its_events(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """The transaction commits without it; a later one with it sends them."""
    order = Order(id="1")
    order.emit("Placed")
    async with factory() as session:
        with interrupted():
            async with session.begin_nested():
                session.add(order)
                await session.flush()
                raise Boom
        session.add(Order(id="2"))
        await session.commit()
        assert [] == await shop.types(storage)
        assert 1 == len(order.pending_events)
        session.add(order)
        await session.commit()
    assert ["Placed"] == await shop.types(storage)


async def test_a_joined_session_collects_too(storage: SqlAlchemyStorage, factory: Factory) -> None:
    """Its entities forget their events when the outer transaction has committed, not before."""
    for end in ("rollback", "commit"):
        order = Order(id=end)
        order.emit(end)
        async with storage.engine.connect() as connection:
            transaction = await connection.begin()
            async with factory(bind=connection) as session:
                session.add(order)
                await session.commit()
            assert 1 == len(order.pending_events)
            await getattr(transaction, end)()
        assert (end == "rollback") == bool(order.pending_events)
    assert {"commit", "old"} == set(await shop.orders(storage))
    assert ["commit"] == await shop.types(storage)


async def test_an_entity_without_a_topic(storage: SqlAlchemyStorage, factory: Factory) -> None:
    """The commit raises with what to do, and nothing is durable."""
    async with factory() as session:
        order = Order(id="1")
        order.topic = None  # type: ignore[assignment]
        order.emit("Placed")
        session.add(order)
        with pytest.raises(ConfigurationError, match="has no topic"):
            await session.commit()
        await session.rollback()
    assert {"old": "new"} == await shop.orders(storage)
    assert [] == await shop.types(storage)


async def test_tenants(storage: SqlAlchemyStorage) -> None:
    """A name, or a function of the session."""
    factory = async_sessionmaker(storage.engine, info={"tenant": "acme"})
    collect_events_on_flush(factory, tenant_id=lambda session: str(session.info["tenant"]))
    async with factory.begin() as session:
        order = Order(id="1")
        order.emit("Placed")
        session.add(order)
    assert ["acme"] == [row.tenant_id for row in await shop.rows(storage)]


async def test_sync_session_factories(storage: SqlAlchemyStorage, kept: Database) -> None:
    """The same with a `sessionmaker`; other sessions are left alone."""
    engine = shop.sync_engine(kept)
    factory = sessionmaker(engine)
    collect_events_on_flush(factory, tenant_id="acme")
    with factory.begin() as session:
        order = Order(id="1")
        order.emit("Placed")
        session.add(order)
    with Session(engine) as plain:
        stored = plain.get_one(Order, "1")
        stored.emit("NotCollected")
        plain.commit()
    engine.dispose()
    assert ["Placed"] == await shop.types(storage)
    with pytest.raises(ConfigurationError, match="sessionmaker"):
        collect_events_on_flush(Session)  # type: ignore[arg-type]


async def test_anything_with_pending_events(storage: SqlAlchemyStorage, factory: Factory) -> None:
    """`AggregateRoot` is a convenience: an unchanged entity of another kind is found too."""
    pending = [PendingEvent({"n": 1}, "e-1", {"topic": "t", "event_type": "Own"})]

    class Foreign(Line):
        pending_events: Any = property(lambda _self: tuple(pending))

        def discard_events(self, events: Any) -> None:
            pending.clear()

    async with factory() as session:
        session.add(Foreign(id=7))
        await session.flush()
        await session.commit()
        assert ["Own"] == await shop.types(storage)
        assert [] == pending
        found = (await session.scalars(select(Foreign))).one()
        pending.append(PendingEvent({"n": 2}, "e-2", {"topic": "t", "event_type": "Unchanged"}))
        await session.commit()
        assert found is not None
    assert ["Own", "Unchanged"] == await shop.types(storage)


@pytest.mark.parametrize("kept", ["postgres", "postgres-psycopg"], indirect=True)
async def test_fm_d02_a_serialization_failure_keeps_new_objects(
    storage: SqlAlchemyStorage, factory: Factory
) -> None:
    """40001, rollback, the same new object again: its event is written once."""
    serializable = storage.engine.execution_options(isolation_level="SERIALIZABLE")
    order = Order(id="1")
    order.emit("Placed")
    async with factory(bind=serializable) as session:
        old = await session.get_one(Order, "old")
        async with factory.begin() as other:
            (await other.get_one(Order, "old")).status = "theirs"
        old.status = "mine"
        session.add(order)
        with pytest.raises(DBAPIError) as caught:
            await session.commit()
        assert storage.is_transient(caught.value)
        await session.rollback()
        session.add(order)
        await session.commit()
    assert {"1": "new", "old": "theirs"} == await shop.orders(storage)
    assert ["Placed"] == await shop.types(storage)
