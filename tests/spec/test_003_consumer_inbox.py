"""Document 003, the consumer inbox: each example, running."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from semel import (
    ConsumerInbox,
    InboxRecord,
    InMemoryMessageBus,
    MessageEnvelope,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
)
from semel.operations import InboxFilter
from semel.protocols import Subscription
from tests.spec.conftest import Effect


@dataclass
class Shop:
    """The business logic of the examples."""

    emails: list[str] = field(default_factory=list)

    async def process_order(
        self, payload: dict[str, Any], uow: SQLAlchemyUnitOfWork
    ) -> dict[str, Any]:
        uow.session.add(Effect(text=payload["order_id"]))
        await uow.session.flush()
        return {"order_id": payload["order_id"], "status": "created"}


async def count(storage: SqlAlchemyStorage) -> int:
    async with storage.session_factory() as session:
        return await session.scalar(select(func.count()).select_from(Effect)) or 0


def arguments(event_id: str = "evt-1", **changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "event_id": event_id,
        "source_topic": "orders",
        "event_type": "OrderCreated",
        "payload": {"order_id": "123", "amount": 5},
        "handler": Shop().process_order,
    }
    return given | changed


async def test_processing_messages(storage: SqlAlchemyStorage) -> None:
    """The first delivery gives the handler's result, the second None."""
    inbox = ConsumerInbox(storage=storage, consumer_name="order-service")

    first = await inbox.process_idempotent(**arguments())
    second = await inbox.process_idempotent(**arguments())

    assert {"order_id": "123", "status": "created"} == first
    assert second is None
    assert 1 == await count(storage)


async def test_handler_that_takes_the_payload_only(storage: SqlAlchemyStorage) -> None:
    """`process_order(payload)` as the document writes it."""

    async def process_order(payload: dict[str, Any]) -> str:
        return str(payload["order_id"])

    inbox = ConsumerInbox(storage, "order-service")

    assert "123" == await inbox.process_idempotent(**arguments(handler=process_order))


async def test_services_do_not_share_names(storage: SqlAlchemyStorage) -> None:
    """One event, three services on one database: each processes it."""
    names = ["order-service", "inventory-service", "notification-service"]
    results = [
        await ConsumerInbox(storage, name).process_idempotent(**arguments()) for name in names
    ]

    assert 3 == sum(result is not None for result in results)
    assert 3 == await count(storage)


async def test_inside_the_callers_transaction(storage: SqlAlchemyStorage) -> None:
    """Best practice 1: the inbox row and the effect are part of the caller's transaction."""
    inbox = ConsumerInbox(storage, "order-service")
    async with storage.session_factory() as session, session.begin():
        result = await inbox.process_idempotent(**arguments(), session=session)
        duplicate = await inbox.process_idempotent(**arguments(), session=session)
        session.add(Effect(text="the caller's own"))

    assert result is not None
    assert duplicate is None
    assert 2 == await count(storage)


async def test_the_callers_rollback_undoes_it(storage: SqlAlchemyStorage) -> None:
    """Rolled back by the caller, the message may come again."""
    inbox = ConsumerInbox(storage, "order-service")
    async with storage.session_factory() as session:
        await inbox.process_idempotent(**arguments(), session=session)
        await session.rollback()
    again = await inbox.process_idempotent(**arguments())

    assert again is not None
    assert 1 == await count(storage)


async def test_handler_errors_propagate(storage: SqlAlchemyStorage) -> None:
    """Best practice 3: the exception is the handler's own, and the next delivery runs again."""

    async def risky_handler(payload: dict[str, Any], uow: SQLAlchemyUnitOfWork) -> str:
        uow.session.add(Effect(text="half"))
        await uow.session.flush()
        if payload["amount"] < 0:
            raise ValueError("Negative amount")
        return "paid"

    inbox = ConsumerInbox(storage, "order-service")
    negative = {"order_id": "123", "amount": -1}
    with pytest.raises(ValueError, match="Negative amount"):
        await inbox.process_idempotent(**arguments(payload=negative, handler=risky_handler))
    after_failure = await count(storage)
    with pytest.raises(ValueError, match="Negative amount"):
        await inbox.process_idempotent(**arguments(payload=negative, handler=risky_handler))

    assert 0 == after_failure
    assert 0 == await count(storage)


async def test_instances_of_one_service(storage: SqlAlchemyStorage) -> None:
    """Best practice 4: two instances, one message at the same time, one effect."""
    instances = [ConsumerInbox(storage, "order-service") for _ in range(2)]

    results = await asyncio.gather(
        *(inbox.process_idempotent(**arguments()) for inbox in instances)
    )

    assert 1 == sum(result is not None for result in results)
    assert 1 == await count(storage)


async def test_cleanup_old_entries(storage: SqlAlchemyStorage) -> None:
    """The scheduled job deletes what is older than seven days, of this consumer."""
    inbox = ConsumerInbox(storage, "order-service")
    await inbox.process_idempotent(**arguments("old"))
    await inbox.process_idempotent(**arguments("young"))
    async with storage.engine.begin() as connection:
        await connection.execute(
            update(InboxRecord)
            .where(InboxRecord.message_id == "old")
            .values(processed_at=datetime.now(UTC) - timedelta(days=8))
        )
    deleted = await inbox.cleanup_old_entries(older_than_days=7)

    assert 1 == deleted


async def test_growth_and_troubleshooting_queries(storage: SqlAlchemyStorage) -> None:
    """Entries by consumer and the oldest of them, without SQL."""
    await ConsumerInbox(storage, "order-service").process_idempotent(**arguments())
    (stats,) = await storage.inbox.stats()
    (record,) = await storage.inbox.search(InboxFilter(consumer_name="order-service"))

    assert ("order-service", 1) == (stats.consumer_name, sum(stats.counts.values()))
    assert stats.oldest is not None
    assert ("orders", "OrderCreated") == (record.source, record.event_type)
    assert record.processing_duration_ms is not None


async def consume(
    subscription: Subscription, inbox: ConsumerInbox, handled: list[Any], wanted: int
) -> None:
    """The document's consumer loop; the id is a header, never the key."""
    deliveries: AsyncIterator[Any] = aiter(subscription)
    async with asyncio.timeout(20):
        while len(handled) < wanted:
            message = await anext(deliveries)
            result = await inbox.process_idempotent(
                event_id=message.wire.headers["message_id"],
                source_topic=message.wire.topic,
                event_type="OrderCreated",
                payload=json.loads(message.wire.body),
                handler=Shop().process_order,
            )
            handled.append(result)
            await message.ack()


async def test_consumer_loop(storage: SqlAlchemyStorage) -> None:
    """The integration examples: every event of a key is processed, a duplicate is not."""
    bus = InMemoryMessageBus()
    inbox = ConsumerInbox(storage, "order-service")
    handled: list[Any] = []
    async with bus:
        first = MessageEnvelope(topic="orders", key="customer-1", payload={"order_id": "1"})
        second = MessageEnvelope(topic="orders", key="customer-1", payload={"order_id": "2"})
        for message in (first, first, second):
            await bus.publish(message)
        subscription = await bus.subscribe("orders", group="order-service")
        await consume(subscription, inbox, handled, 3)

    assert [True, False, True] == [result is not None for result in handled]
    assert 2 == await count(storage)
