"""A real database under state machines, and the event loop that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine
from sqlalchemy import String, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.stores import shop

T = TypeVar("T")

# Nothing in a step waits for time: whatever takes this long hangs.
PATIENCE = 60.0


class Base(DeclarativeBase):
    """Tables of the application."""


class Effect(Base):
    """What a handler did. Nothing keeps it from happening twice but the inbox."""

    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(String(300))


class World:
    """One database, which every example finds empty."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.storage = SqlAlchemyStorage(url, notify=False)
        self.examples = 0
        self.steps = 0
        self.run(self._create())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def close(self) -> None:
        self.run(self.storage.close())
        self.run(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def empty(self) -> None:
        await shop.empty(self.storage)
        async with self.storage.engine.begin() as connection:
            await connection.execute(delete(Effect))

    async def _create(self) -> None:
        await self.storage.initialize()
        async with self.storage.engine.begin() as connection:
            await connection.run_sync(shop.Base.metadata.create_all)
            await connection.run_sync(Base.metadata.create_all)


@contextmanager
def world(url: str) -> Iterator[World]:
    """A world with semel's tables, gone afterwards."""
    made = World(url)
    try:
        yield made
    finally:
        made.close()


class Machine(RuleBasedStateMachine):
    """A state machine whose rules call asynchronous code, beside a model of plain dictionaries."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.storage = world.storage
        world.examples += 1
        world.run(world.empty())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        self.world.steps += 1
        return self.world.run(work)


def budget(examples: int, steps: int, **options: Any) -> settings:
    """How much to try; without a database of examples, so that a run depends on nothing else."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        **options,
    )
