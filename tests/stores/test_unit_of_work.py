"""The unit of work: repositories, tracked aggregates, commits that fail, typed events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from sqlalchemy.exc import IntegrityError, InvalidRequestError

from semel.aggregate import AggregateRoot
from semel.envelope import MessageEnvelope
from semel.errors import (
    ConfigurationError,
    NoTransactionError,
    PayloadTooLargeError,
    SerializationError,
    StorageError,
    TransactionMisuseError,
)
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork
from tests.stores import shop
from tests.stores.shop import Boom, Line, Order, interrupted

REFUSED = (StorageError, InvalidRequestError)


async def test_repositories(storage: SqlAlchemyStorage) -> None:
    """What they save, find, list and delete is tracked."""
    async with storage.unit_of_work() as uow:
        for name in ("1", "2"):
            order = await uow.repository(Order).save(Order(id=name))
            order.emit("Placed")
        await uow.commit()
    async with storage.unit_of_work() as uow:
        orders = uow.repository(Order)
        assert await orders.get("none") is None
        found = await orders.get("1")
        assert found is not None
        found.status = "paid"
        found.emit("Paid")
        [listed] = await orders.list(status="new", id="2")
        listed.emit("Cancelled")
        await orders.delete(listed)
        assert [] == await orders.list(id="none")
        await uow.commit()
    assert {"1": "paid"} == await shop.orders(storage)
    assert ["Placed", "Placed", "Paid", "Cancelled"] == await shop.types(storage)


async def test_leaving_without_a_commit_rolls_back(storage: SqlAlchemyStorage) -> None:
    """Whatever was saved; the object keeps its events for another attempt."""
    order = Order(id="1")
    order.emit("Placed")
    for _ in range(2):
        async with storage.unit_of_work() as uow:
            await uow.repository(Order).save(order)
            await uow.session.flush()
    with interrupted():
        async with storage.unit_of_work() as uow:
            await uow.repository(Order).save(order)
            await uow.session.flush()
            raise Boom
    assert {} == await shop.orders(storage)
    async with storage.unit_of_work() as uow:
        await uow.repository(Order).save(order)
        await uow.commit()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["Placed"] == await shop.types(storage)


async def test_what_was_read_can_be_used_after_the_block(storage: SqlAlchemyStorage) -> None:
    """With and without a commit: nothing that was loaded is expired."""
    async with storage.unit_of_work() as uow:
        written = await uow.repository(Order).save(Order(id="1"))
        await uow.commit()
        read = await uow.repository(Order).get("1")
    async with storage.unit_of_work() as uow:
        again = await uow.repository(Order).get("1")
    assert read is not None
    assert again is not None
    assert ["new"] * 3 == [order.status for order in (written, read, again)]


async def test_a_commit_that_fails_and_its_retry(storage: SqlAlchemyStorage) -> None:
    """The same new object saved again in the same unit of work brings its events, once."""
    async with storage.unit_of_work() as uow:
        await uow.repository(Order).save(Order(id="taken"))
        await uow.commit()
    order = Order(id="1")
    order.emit("Placed")
    async with storage.unit_of_work() as uow:
        await uow.repository(Order).save(order)
        await uow.outbox.add("t", 1, event_id="e-1", event_type="Duplicate")
        await uow.outbox.add("t", 1, event_id="e-1", event_type="Duplicate")
        with pytest.raises(IntegrityError):
            await uow.commit()
        with pytest.raises(REFUSED):
            await uow.commit()
        await uow.rollback()
        await uow.commit()
        assert [] == await shop.types(storage), "an abandoned aggregate is not collected"
        await uow.repository(Order).save(order)
        await uow.commit()
        await uow.commit()
    assert {"1", "taken"} == set(await shop.orders(storage))
    assert ["Placed"] == await shop.types(storage)
    assert () == order.pending_events


async def test_a_rollback_undoes_events_of_stored_aggregates(storage: SqlAlchemyStorage) -> None:
    """The change is gone, so its event is: doing it again tells it once."""
    async with storage.unit_of_work() as uow:
        await uow.repository(Order).save(Order(id="1"))
        await uow.commit()
    async with storage.unit_of_work() as uow:
        for attempt in range(2):
            order = await uow.repository(Order).get("1")
            assert order is not None
            order.status = "paid"
            order.emit("Paid")
            if not attempt:
                await uow.rollback()
        await uow.commit()
    assert {"1": "paid"} == await shop.orders(storage)
    assert ["Paid"] == await shop.types(storage)


async def test_fm_p02_savepoints_and_tracked_aggregates(storage: SqlAlchemyStorage) -> None:
    """Events and aggregates of a savepoint that is rolled back are not collected."""

    class Plain(AggregateRoot):
        topic = "plain"
        id = "p"

    plain, order = Plain(), Order(id="1")
    async with storage.unit_of_work() as uow:
        uow.track(plain)
        plain.add_event({}, event_type="Before")
        with interrupted():
            async with uow.session.begin_nested():
                plain.add_event({}, event_type="Inside")
                await uow.repository(Order).save(order)
                order.emit("Placed")
                await uow.session.flush()
                raise Boom
        plain.add_event({}, event_type="After")
        async with uow.session.begin_nested():
            plain.add_event({}, event_type="Released")
        await uow.commit()
        assert ["Before", "After", "Released"] == await shop.types(storage)
        await uow.repository(Order).save(order)
        await uow.commit()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["Before", "After", "Released", "Placed"] == await shop.types(storage)


async def test_joining_a_session(storage: SqlAlchemyStorage) -> None:
    """The unit of work adds to it; whoever owns the session commits or not."""
    for commits in (False, True):
        async with storage.session_factory() as session:
            async with storage.unit_of_work(session=session) as uow:
                assert session is uow.session
                order = await uow.repository(Order).save(Order(id="1"))
                order.emit("Placed")
                await uow.outbox.add("t", 1, event_type="Added")
                await uow.commit()
            assert [] == await shop.types(storage)
            assert 1 == len(order.pending_events)
            if commits:
                await session.commit()
    assert {"1": "new"} == await shop.orders(storage)
    assert ["Added", "Placed"] == await shop.types(storage)


async def test_misuse(storage: SqlAlchemyStorage) -> None:
    """Each with a sentence that says what to do."""
    uow = storage.unit_of_work()
    for use in (
        lambda: uow.session,
        lambda: uow.outbox,
        lambda: uow.inbox,
        lambda: uow.track(Order(id="1")),
    ):
        with pytest.raises(NoTransactionError, match="async with uow"):
            use()
    for action in (uow.commit, uow.rollback, uow.repository(Order).list):
        with pytest.raises(NoTransactionError, match="async with uow"):
            await action()  # type: ignore[operator]
    async with uow:
        with pytest.raises(NoTransactionError, match="make another one"):
            await uow.__aenter__()
        with storage.lend(uow):
            for commit in (uow.commit, uow.session.commit):
                with pytest.raises(TransactionMisuseError, match="lent"):
                    await commit()
    for wrong in ({}, {"session_factory": storage.session_factory, "session": object()}):
        with pytest.raises(ConfigurationError, match="session_factory, or a session"):
            SQLAlchemyUnitOfWork(**wrong)  # type: ignore[arg-type]


async def test_an_aggregate_without_an_id(storage: SqlAlchemyStorage) -> None:
    """Raises before the commit; with an id the same unit of work goes on."""
    line = Line()
    line.add_event({}, event_type="Added")
    async with storage.unit_of_work() as uow:
        uow.track(line)
        with pytest.raises(ConfigurationError, match="no `id` yet"):
            await uow.commit()
        uow.session.add(line)
        await uow.commit()
    assert [str(line.id)] == [row.aggregate_id for row in await shop.rows(storage)]


@dataclass
class Placed:
    order: UUID
    total: Decimal
    at: datetime
    topic = "orders"


class Paid(pydantic.BaseModel):
    amount: Decimal
    event_type: str = "order.paid"


class Sent(msgspec.Struct):
    parcels: list[str]


async def test_typed_events(storage: SqlAlchemyStorage) -> None:
    """Dataclasses, pydantic models and msgspec structs; topic and type from where they are."""

    class Basket(AggregateRoot):
        topic = "baskets"
        aggregate_type = "basket"
        aggregate_id = 0

    basket = Basket()
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    basket.add_event(Placed(UUID(int=1), Decimal("1.10"), moment))
    basket.add_event(Paid(amount=Decimal("1.10")), topic="payments", key="own", routing_key="eu")
    basket.add_event(Sent(["a"]), event_type="Shipped", metadata={"user_id": "u"})
    async with storage.unit_of_work(tenant_id="acme") as uow:
        uow.track(basket)
        await uow.commit()
    rows = await shop.rows(storage)
    assert [
        ("orders", "Placed", "basket:0"),
        ("payments", "order.paid", "own"),
        ("baskets", "Shipped", "basket:0"),
    ] == [(row.topic, row.event_type, row.order_key) for row in rows]
    assert [
        {
            "order": "00000000-0000-0000-0000-000000000001",
            "total": "1.10",
            "at": "2024-05-06T07:08:09+00:00",
        },
        {"amount": "1.10", "event_type": "order.paid"},
        {"parcels": ["a"]},
    ] == [row.payload for row in rows]
    assert [{}, {}, {"user_id": "u"}] == [row.event_metadata for row in rows]
    assert {("acme", "basket", "0")} == {
        (row.tenant_id, row.aggregate_type, row.aggregate_id) for row in rows
    }
    assert "eu" == rows[1].routing_key


async def test_storage_settings_reach_the_outbox(storage: SqlAlchemyStorage) -> None:
    """The limit, the serializer and the unordered topics."""

    class Shout:
        content_type = "text/shout"

        def dumps(self, payload: Any) -> bytes:
            if not isinstance(payload, str):
                raise SerializationError("only text can be shouted")
            return payload.upper().encode()

        def loads(self, data: bytes) -> Any:
            return data.decode()

    own = SqlAlchemyStorage(storage.engine, serializer=Shout(), max_payload_bytes=3)
    async with own, own.unit_of_work() as uow:
        await uow.outbox.add("t", "abc")
        with pytest.raises(PayloadTooLargeError, match="4 bytes, the limit is 3"):
            await uow.outbox.add("t", "abcd")
        with pytest.raises(SerializationError, match="only text"):
            await uow.outbox.add("t", 1)
        await uow.commit()
    [row] = await shop.rows(storage)
    assert (b"ABC", None, "text/shout") == (row.payload_bytes, row.payload, row.content_type)


async def test_finding_11_emitted_ids_differ_by_everything_that_matters(
    storage: SqlAlchemyStorage,
) -> None:
    """Tenant, consumer, message, topic, type, key and ordinal; and by nothing else."""
    seen: set[str] = set()
    cause = MessageEnvelope(topic="t", payload=1)
    for tenant, consumer, message in (
        ("a", "c", cause),
        ("b", "c", cause),
        ("a", "d", cause),
        ("a", "c", MessageEnvelope(topic="t", payload=1)),
    ):
        for topic, kind, key in (
            ("t", "e", "k"),
            ("u", "e", "k"),
            ("t", "f", "k"),
            ("t", "e", "l"),
            ("t", "e", None),
        ):
            async with storage.unit_of_work(
                tenant_id=tenant, consumer_name=consumer, cause=message
            ) as uow:
                for _ in range(2):
                    record = await uow.outbox.add(topic, 1, event_type=kind, key=key)
                    seen.add(record.id)
    assert 4 * 5 * 2 == len(seen)
