"""Both databases of a run, as the harness sees them: without a proxy."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from semel import InboxRecord, OutboxRecord, SqlAlchemyStorage
from tests.chaos.tables import Committed

_ENDED = ("PROCESSED", "DEAD", "PARKED")


class Storages:
    """Both databases."""

    def __init__(self, db1: str, db2: str) -> None:
        self.one, self.two = SqlAlchemyStorage(db1), SqlAlchemyStorage(db2)
        self.both = (self.one, self.two)

    async def close(self) -> None:
        for storage in self.both:
            await storage.close()

    async def rows(self, storage: SqlAlchemyStorage, *columns: Any, by: Any) -> list[Any]:
        reader = storage.engine.execution_options(semel_read_only=True)
        async with reader.connect() as connection:
            return list((await connection.execute(select(*columns).order_by(by))).all())

    async def everywhere(self, *columns: Any, by: Any) -> list[Any]:
        return [row for each in self.both for row in await self.rows(each, *columns, by=by)]


async def unsettled(storages: Storages, groups: tuple[str, ...]) -> int:
    """How much is still under way: unsent rows, and events that a group has not dealt with."""
    waiting = 0
    for storage in storages.both:
        reader = storage.engine.execution_options(semel_read_only=True)
        async with reader.connect() as connection:
            unsent = select(func.count()).where(OutboxRecord.status.not_in(["SENT", "DEAD"]))
            waiting += await connection.scalar(unsent) or 0
    ledger = {row.id for row in await storages.everywhere(Committed.id, by=Committed.number)}
    done = await storages.rows(
        storages.two,
        *(InboxRecord.consumer_name, InboxRecord.message_id, InboxRecord.status),
        by=InboxRecord.message_id,
    )
    ended = {(row[0], row[1]) for row in done if row[2] in _ENDED}
    dead = {
        row.id
        for row in await storages.everywhere(
            OutboxRecord.id, OutboxRecord.status, by=OutboxRecord.id
        )
        if row.status == "DEAD"
    }
    missing = sum((group, each) not in ended for group in groups for each in ledger - dead)
    return waiting + missing
