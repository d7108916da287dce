"""What the operator's side shares: a reader, and transactions that projectors notice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from sqlalchemy import Table, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.failpoints import failpoint
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.leases import relay_engine
from semel.sqlalchemy.tables import OutboxControl

T = TypeVar("T")
CONTROL = cast("Table", OutboxControl.__table__)
_TRIES = 5


class OperatorSide:
    """Base of the parts that the operator's stores are made of."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._database = database_of(engine.dialect)
        self._engine = relay_engine(engine)
        self._reader = self._engine.execution_options(semel_read_only=True)

    async def _transact(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run *work* in a transaction; again after a deadlock, which undid all of it."""
        tries = 0
        while True:
            try:
                async with self._engine.begin() as connection:
                    done = await work(connection)
                    failpoint("operator.before_commit")
                failpoint("operator.after_commit")
            except DBAPIError as error:
                tries += 1
                lost = error.connection_invalidated or not self._database.is_transient(error)
                if lost or tries >= _TRIES:
                    raise
            else:
                return done

    async def _queue(self, connection: AsyncConnection) -> int:
        """Wait for other operators; return the number of interventions so far.

        Batches of two of them would overtake each other otherwise, and so would events of a key.
        """
        current = await connection.scalar(
            select(CONTROL.c.value).where(CONTROL.c.name == "operations").with_for_update()
        )
        return int(current or 0)

    async def _announce(self, connection: AsyncConnection, current: int) -> None:
        """Tell projectors to look at everything again; they read this at each heartbeat."""
        await connection.execute(
            update(CONTROL).where(CONTROL.c.name == "operations").values(value=current + 1)
        )
