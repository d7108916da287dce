from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from semel.commands import CommandBus
from semel.errors import ConfigurationError, UnknownCommandError
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from tests.services import Database


@dataclass(frozen=True)
class CancelOrder:
    order_id: str


@dataclass(frozen=True)
class ShipOrder:
    order_id: str


@pytest.fixture
async def storage(sqlite: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        yield storage


async def topics(storage: SqlAlchemyStorage) -> list[str]:
    async with storage.session_factory() as session:
        return list(await session.scalars(select(OutboxRecord.topic)))


async def emit(command: CancelOrder, uow: Any) -> str:
    await uow.outbox.add("orders", {"cancelled": command.order_id})
    return "cancelled"


async def test_a_command_opens_and_commits_its_own_unit_of_work(storage: SqlAlchemyStorage) -> None:
    """Without a unit of work the command has one for itself, of the tenant that was given."""
    commands = CommandBus(storage)
    commands.handler(CancelOrder)(emit)
    assert "cancelled" == await commands.execute(CancelOrder("1"), tenant_id="north")
    [row] = await storage.outbox.search()
    assert ("orders", "north") == (row.topic, row.tenant_id)


async def test_a_command_joins_a_unit_of_work(storage: SqlAlchemyStorage) -> None:
    """Its effects happen if and only if the caller commits."""
    commands = CommandBus()
    commands.handler(CancelOrder)(emit)
    async with storage.unit_of_work() as uow:
        await commands.execute(CancelOrder("1"), uow)
    assert [] == await topics(storage)
    async with storage.unit_of_work() as uow:
        await commands.execute(CancelOrder("1"), uow)
        await uow.commit()
    assert ["orders"] == await topics(storage)


async def test_a_failing_command_undoes_its_unit_of_work(storage: SqlAlchemyStorage) -> None:
    """The handler's exception comes out as it is, and nothing stays."""
    commands = CommandBus(storage)
    error = ValueError("no")

    @commands.handler(CancelOrder)
    async def fail(command: CancelOrder, uow: Any) -> None:
        await emit(command, uow)
        raise error

    with pytest.raises(ValueError) as caught:
        await commands.execute(CancelOrder("1"))
    assert error is caught.value
    assert [] == await topics(storage)


async def test_a_handler_may_do_without_the_unit_of_work(storage: SqlAlchemyStorage) -> None:
    """A handler of one parameter receives the command only."""
    commands = CommandBus(storage)

    @commands.handler(ShipOrder)
    async def ship(command: ShipOrder) -> str:
        return command.order_id

    assert "7" == await commands.execute(ShipOrder("7"))


async def test_an_unknown_command_says_what_is_known() -> None:
    """The error names the type and what is registered."""
    commands = CommandBus()
    with pytest.raises(UnknownCommandError, match="CancelOrder; registered: none"):
        await commands.execute(CancelOrder("1"))
    commands.handler(ShipOrder)(emit)
    with pytest.raises(UnknownCommandError, match="CancelOrder; registered: ShipOrder"):
        await commands.execute(CancelOrder("1"))


async def test_a_command_without_storage_or_unit_of_work() -> None:
    """There is nothing to run it in."""
    commands = CommandBus()
    commands.handler(CancelOrder)(emit)
    with pytest.raises(ConfigurationError, match="no storage"):
        await commands.execute(CancelOrder("1"))


def test_a_command_has_one_handler() -> None:
    """A second handler is refused, and both are named."""
    commands = CommandBus()
    commands.handler(CancelOrder)(emit)

    async def another(command: CancelOrder) -> None: ...

    with pytest.raises(ConfigurationError, match=r"two handlers, .*\.emit and .*another"):
        commands.handler(CancelOrder)(another)


def test_a_handler_is_registered_for_a_type() -> None:
    """Forgetting the type is said at once."""
    with pytest.raises(ConfigurationError, match="needs the type"):
        CommandBus().handler(emit)  # type: ignore[arg-type]
