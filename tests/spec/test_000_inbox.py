"""Document 000, the inbox pattern: each example, running."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, inspect, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from semel import (
    DuplicateMessageError,
    Inbox,
    InboxRecord,
    MessageEnvelope,
    SqlAlchemyInbox,
    SqlAlchemyStorage,
)
from tests.spec.conftest import Effect


class OrderEventHandler:
    """Section 1: used in a message handler."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.inbox = SqlAlchemyInbox(session, tenant_id="default")

    async def handle_order_created(self, event_id: str, payload: dict[str, Any]) -> bool:
        if await self.inbox.is_processed(event_id):
            return False
        await self.process_order(payload)
        await self.inbox.mark_processed(
            message_id=event_id,
            event_type="OrderCreated",
            payload=payload,
            source="order-service",
        )
        await self.session.commit()
        return True

    async def process_order(self, payload: dict[str, Any]) -> None:
        self.session.add(Effect(text=payload["order_id"]))


async def effects(storage: SqlAlchemyStorage) -> list[str]:
    async with storage.session_factory() as session:
        return list(await session.scalars(select(Effect.text).order_by(Effect.number)))


async def test_handler_skips_the_duplicate(storage: SqlAlchemyStorage) -> None:
    """The second delivery of an event does nothing."""
    async with storage.session_factory() as session:
        first = await OrderEventHandler(session).handle_order_created("e1", {"order_id": "1"})
    async with storage.session_factory() as session:
        second = await OrderEventHandler(session).handle_order_created("e1", {"order_id": "1"})

    assert (True, False) == (first, second)
    assert ["1"] == await effects(storage)


async def test_the_insert_is_the_gate(storage: SqlAlchemyStorage) -> None:
    """Both look first and both see nothing: still only one effect is committed."""
    looked = asyncio.Barrier(2)

    class Racing(OrderEventHandler):
        async def process_order(self, payload: dict[str, Any]) -> None:
            await asyncio.sleep(0)
            await super().process_order(payload)

    async def deliver() -> str:
        async with storage.session_factory() as session:
            handler = Racing(session)
            seen = await handler.inbox.is_processed("e1")
            await session.rollback()
            async with asyncio.timeout(10):
                await looked.wait()
            assert not seen
            try:
                await handler.process_order({"order_id": "1"})
                await handler.inbox.mark_processed("e1", "OrderCreated")
                await session.commit()
            except (DuplicateMessageError, IntegrityError):
                return "duplicate"
            return "done"

    assert ["done", "duplicate"] == sorted(await asyncio.gather(deliver(), deliver()))
    assert ["1"] == await effects(storage)


async def test_with_a_message_envelope(storage: SqlAlchemyStorage) -> None:
    """Section 2: the envelope's event_id is the key."""
    handled: list[Any] = []

    async def handle_message(envelope: MessageEnvelope, inbox: Inbox) -> None:
        if await inbox.is_processed(envelope.event_id):
            return
        handled.append(envelope.payload)
        await inbox.mark_processed(
            message_id=envelope.event_id,
            event_type=envelope.event_type,
            payload=envelope.payload,
        )

    envelope = MessageEnvelope(topic="orders", event_type="OrderCreated", payload={"id": 1})
    for _ in range(2):
        async with storage.session_factory() as session:
            await handle_message(envelope, SqlAlchemyInbox(session))
            await session.commit()

    assert [{"id": 1}] == handled


async def test_record_keeps_what_the_table_promises(session: AsyncSession) -> None:
    """The columns of the document are there and filled."""
    inbox = SqlAlchemyInbox(session, tenant_id="t1")
    record = await inbox.mark_processed(
        "m1", "OrderCreated", {"a": 1}, source="order-service", extra_data={"attempt": 1}
    )
    await session.commit()
    found = await inbox.get_record("m1")

    assert isinstance(record, InboxRecord)
    assert found is not None
    assert ("m1", "t1", "OrderCreated") == (found.message_id, found.tenant_id, found.event_type)
    assert "order-service" == found.source
    assert {"attempt": 1} == found.extra_data
    assert found.payload_hash is not None
    assert 64 == len(found.payload_hash)
    assert found.processed_at is not None
    assert datetime.now(UTC) - found.processed_at < timedelta(minutes=5)


async def test_unknown_message_has_no_record(session: AsyncSession) -> None:
    """get_record says None for a message that never came."""
    inbox = SqlAlchemyInbox(session)

    assert await inbox.get_record("never") is None
    assert not await inbox.is_processed("never")


async def test_mark_processed_twice_raises(session: AsyncSession) -> None:
    """The database keeps a message id once."""
    inbox = SqlAlchemyInbox(session)
    await inbox.mark_processed("m1", "OrderCreated")

    with pytest.raises(DuplicateMessageError):
        await inbox.mark_processed("m1", "OrderCreated")


async def test_tenants_are_separate(storage: SqlAlchemyStorage) -> None:
    """The same id in two tenants is two messages."""
    async with storage.session_factory() as session:
        await SqlAlchemyInbox(session, tenant_id="t1").mark_processed("m1", "OrderCreated")
        await session.commit()

        assert not await SqlAlchemyInbox(session, tenant_id="t2").is_processed("m1")


async def test_rollback_forgets(storage: SqlAlchemyStorage) -> None:
    """Principle 1: the record and the business change share a transaction."""
    async with storage.session_factory() as session:
        await SqlAlchemyInbox(session).mark_processed("m1", "OrderCreated")
        await session.rollback()

        assert not await SqlAlchemyInbox(session).is_processed("m1")


async def test_cleanup_of_old_records(session: AsyncSession) -> None:
    """Records older than 30 days go, younger ones stay."""
    inbox = SqlAlchemyInbox(session)
    await inbox.mark_processed("old", "OrderCreated")
    await inbox.mark_processed("young", "OrderCreated")
    await session.execute(
        update(InboxRecord)
        .where(InboxRecord.message_id == "old")
        .values(processed_at=datetime.now(UTC) - timedelta(days=31))
    )
    deleted_count = await inbox.cleanup_old_records(older_than_days=30)
    await session.commit()

    assert 1 == deleted_count
    assert 1 == await session.scalar(select(func.count()).select_from(InboxRecord))


async def test_index_for_the_cleanup(storage: SqlAlchemyStorage) -> None:
    """The clean-up has its index."""
    async with storage.engine.connect() as connection:
        indexes = await connection.run_sync(lambda c: inspect(c).get_indexes("inbox"))

    assert ["processed_at"] in [index["column_names"] for index in indexes]
