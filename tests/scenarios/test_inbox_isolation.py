"""Deadlocks and higher isolation levels: the message starts again, and nothing is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from semel.errors import StorageError
from semel.inbox import ConsumerInbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.consuming import effects, names, perform, prepare, run, stock
from tests.services import Database

servers = pytest.mark.parametrize(
    "database", ["postgres", "postgres-psycopg", "mariadb"], indirect=True
)


@servers
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_concurrent_duplicates_at_higher_isolation(database: Database, level: str) -> None:
    """Serialization failures start the message again: every message has one effect."""
    async with SqlAlchemyStorage(database.url, isolation_level=level) as storage:
        await prepare(storage)
        inbox = ConsumerInbox(storage, "billing")
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(run(inbox) for _ in range(4)))
        assert 1 == sum(result is not None for result in results)
        assert ["a"] == await names(storage)


@servers
async def test_a_deadlock_is_started_again(storage: SqlAlchemyStorage) -> None:
    """Two handlers lock rows in opposite order: the victim runs again, and both finish."""
    met = asyncio.Barrier(2)
    runs: Counter[str] = Counter()

    def crossing(*rows: int) -> Callable[..., Any]:
        async def handler(payload: dict[str, Any], uow: Any) -> str:
            runs[payload["name"]] += 1
            for number, row in enumerate(rows):
                await uow.session.execute(
                    update(stock).where(stock.c.id == row).values(left=stock.c.left - 1)
                )
                if number == 0 and runs[payload["name"]] == 1:
                    await met.wait()
            return await perform(payload, uow)

        return handler

    inbox = ConsumerInbox(storage, "billing")
    async with asyncio.timeout(30):
        results = await asyncio.gather(
            run(inbox, crossing(1, 2), id="m-1", payload={"name": "a"}),
            run(inbox, crossing(2, 1), id="m-2", payload={"name": "b"}),
        )
    assert ["did a", "did b"] == results
    assert 3 == runs.total()
    async with storage.engine.connect() as connection:
        assert [8, 8] == list(await connection.scalars(select(stock.c.left)))
    assert ["a", "b"] == sorted(await names(storage))


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
async def test_innodb_undoes_everything_on_a_deadlock(storage: SqlAlchemyStorage) -> None:
    """After a deadlock in the caller's transaction a commit is refused: its first half is gone."""
    locked, waiting = asyncio.Event(), asyncio.Event()
    inbox = ConsumerInbox(storage, "billing")

    async def heavy() -> None:
        async with storage.session_factory() as session, session.begin():
            await session.execute(update(stock).where(stock.c.id == 2).values(left=0))
            await session.execute(insert(effects), [{"name": f"heavy {n}"} for n in range(50)])
            locked.set()
            await waiting.wait()
            await session.execute(update(stock).where(stock.c.id == 1).values(left=0))

    async def handler(_payload: dict[str, Any], uow: Any) -> None:
        await uow.session.execute(update(stock).where(stock.c.id == 1).values(left=5))
        waiting.set()
        await uow.session.execute(update(stock).where(stock.c.id == 2).values(left=5))

    other = asyncio.create_task(heavy())
    await locked.wait()
    async with storage.session_factory() as session:
        await session.execute(insert(effects).values(name="the caller's"))
        with pytest.raises(Exception, match="1213") as caught:
            await run(inbox, handler, session=session)
        assert storage.is_transient(caught.value)
        with pytest.raises(StorageError, match="roll it back"):
            await session.commit()
    await other
    assert "the caller's" not in await names(storage)
