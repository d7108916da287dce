"""The hub wires; it does not fall over when a part is not there yet."""

from __future__ import annotations

import pytest

from semel import ConfigurationError, Hub, InMemoryMessageBus, MessageEnvelope, SqlAlchemyStorage
from semel.errors import BusError


class LateBus(InMemoryMessageBus):
    """A broker that does not answer at first."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 2

    async def _open(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise BusError("connection refused")
        await super()._open()


async def test_broker_that_comes_later(semel_storage: SqlAlchemyStorage) -> None:
    """A hub that starts before its broker works as soon as that answers."""
    hub = Hub("shop", storage=semel_storage, bus=LateBus())
    seen: list[str] = []

    @hub.on("orders", "OrderPlaced")
    async def handle(event: MessageEnvelope) -> None:
        seen.append(event.event_id)

    async with hub.running():
        async with hub.unit_of_work() as uow:
            record = await uow.outbox.add("orders", {}, event_type="OrderPlaced")
            await uow.commit()
        await hub.drain(seconds=20)

    assert [record.id] == seen


async def test_options_are_given_where_a_consumer_is_first_used(
    semel_storage: SqlAlchemyStorage,
) -> None:
    """A second set of options for one topic is refused, not ignored."""
    hub = Hub("shop", storage=semel_storage, bus=InMemoryMessageBus())
    hub.consumer("orders", concurrency=2)

    with pytest.raises(ConfigurationError, match="orders"):
        hub.consumer("orders", concurrency=4)


async def test_hub_without_tables_says_what_to_do(tmp_path) -> None:
    """The tables are checked before anything runs."""
    storage = SqlAlchemyStorage(f"sqlite+aiosqlite:///{tmp_path / 'empty.db'}")
    hub = Hub("shop", storage=storage, bus=InMemoryMessageBus())

    with pytest.raises(Exception, match="semel db create"):
        async with hub.running():
            pass
