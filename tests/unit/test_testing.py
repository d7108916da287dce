"""What semel gives to the tests of services."""

from __future__ import annotations

import asyncio

import pytest

from semel import Hub, InMemoryMessageBus, MessageEnvelope, SqlAlchemyStorage
from semel.testing import FakeClock, added, assert_added, drain


async def test_assert_added_finds_the_event(semel_storage: SqlAlchemyStorage) -> None:
    """The one event with these attributes is returned."""
    async with semel_storage.unit_of_work() as uow:
        await uow.outbox.add("orders", {"id": 1}, event_type="OrderPlaced")
        await uow.outbox.add("orders", {"id": 2}, event_type="OrderPlaced")
        await uow.commit()

    found = await assert_added(semel_storage, topic="orders", payload={"id": 2})
    assert "OrderPlaced" == found.event_type
    assert [{"id": 1}, {"id": 2}] == [row.payload for row in await added(semel_storage)]


async def test_assert_added_tells_what_there_is(semel_storage: SqlAlchemyStorage) -> None:
    """A failure lists what the outbox has, and no payload."""
    async with semel_storage.unit_of_work() as uow:
        await uow.outbox.add("orders", {"secret": "s3cr3t"}, event_type="OrderPlaced")
        await uow.commit()

    with pytest.raises(AssertionError, match="orders/OrderPlaced") as caught:
        await assert_added(semel_storage, topic="payments", payload={"secret": "s3cr3t"})
    assert "s3cr3t" not in str(caught.value)


async def test_drain_waits_for_the_handlers(
    semel_storage: SqlAlchemyStorage, semel_bus: InMemoryMessageBus
) -> None:
    """After drain() the handler has run, once."""
    hub = Hub("shop", storage=semel_storage, bus=semel_bus)
    seen: list[str] = []

    @hub.on("orders", "OrderPlaced")
    async def handle(event: MessageEnvelope) -> None:
        seen.append(event.event_id)

    async with hub.running():
        async with hub.unit_of_work() as uow:
            record = await uow.outbox.add("orders", {}, event_type="OrderPlaced")
            await uow.commit()
        await drain(hub)

    assert [record.id] == seen


async def test_fake_clock_wakes_sleepers_in_time(semel_clock: FakeClock) -> None:
    """A sleeper wakes when the clock was moved far enough, not before."""
    sleeper = asyncio.create_task(semel_clock.sleep(10))
    await asyncio.sleep(0)
    semel_clock.advance(9)
    await asyncio.sleep(0)
    early = sleeper.done()
    semel_clock.advance(1)
    await sleeper

    assert not early
    assert 10 == semel_clock.monotonic()
