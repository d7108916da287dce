"""The store that the simulation runs on is honest: it passes the contracts of the real ones."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts.idempotency import IdempotencyStoreContract
from semel.testing.contracts.inbox import InboxStoreContract
from semel.testing.contracts.outbox import RelayStoreContract
from tests.simulation import driver
from tests.simulation.driver import EPOCH, engine_for


class _Peace:
    """A way to the server on which nothing happens."""

    fails = ""

    async def travel(self, *, back: bool = False) -> None:
        await asyncio.sleep(0)

    def maybe_lose_answer(self) -> None:
        if self.fails == "answer":
            raise ConnectionError

    def maybe_refuse(self) -> None:
        pass


def seconds() -> float:
    return (datetime.now(UTC) - EPOCH).total_seconds()


def node_on(database: Path) -> Any:
    return SimpleNamespace(
        name=str(database),
        database=str(database),
        link=_Peace(),
        connections=[],
        loop=SimpleNamespace(time=seconds),
        world=SimpleNamespace(spring=lambda _name, _node: None),
        trace=lambda _kind, _detail: None,
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Any]:
    sqlite3.connect(tmp_path / "simulated.db").execute("PRAGMA journal_mode = WAL").close()
    node = node_on(tmp_path / "simulated.db")
    yield node
    driver._FIRST.pop(node.name, None)
    for connection in list(node.connections):
        connection.kill()


@pytest.fixture
async def storage(node: Any) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(engine_for(node)) as storage:
        await storage.initialize()
        yield storage


class TestRelayStore(RelayStoreContract):
    sees_writers = False
    hears_other_processes = False

    @pytest.fixture
    async def another(
        self, storage: SqlAlchemyStorage, node: Any
    ) -> AsyncIterator[SqlAlchemyStorage]:
        async with SqlAlchemyStorage(engine_for(node)) as another:
            yield another


class TestInbox(InboxStoreContract):
    pass


class TestIdempotency(IdempotencyStoreContract):
    pass


async def write(storage: SqlAlchemyStorage, before_commit: Callable[[], None]) -> None:
    async with storage.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE notes (id INTEGER)"))
        before_commit()


async def tables(storage: SqlAlchemyStorage) -> int:
    async with storage.engine.connect() as connection:
        sql = text("SELECT count(*) FROM sqlite_master WHERE name = 'notes'")
        return int(await connection.scalar(sql) or 0)


async def test_a_connection_that_is_killed_undoes_its_transaction(node, storage):
    def kill() -> None:
        for connection in list(node.connections):
            connection.kill()

    with pytest.raises(OperationalError, match="no active connection"):
        await write(storage, kill)
    assert 0 == await tables(storage)


async def test_an_answer_may_get_lost_although_the_commit_took_effect(node, storage):
    with pytest.raises(OperationalError) as raised:
        await write(storage, lambda: setattr(node.link, "fails", "answer"))
    assert storage.is_transient(raised.value)
    node.link.fails = ""
    assert 1 == await tables(storage)


async def test_a_second_writer_waits_for_the_first(node, storage):
    order: list[str] = []

    async def second() -> None:
        async with storage.engine.begin():
            order.append("second")

    async with storage.engine.begin():
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.1)
        order.append("first")
    await waiting
    assert ["first", "second"] == order
