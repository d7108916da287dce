"""`semel bench`, with tiny sizes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from sqlalchemy import inspect
from typer.testing import CliRunner, Result

from semel.cli.app import app
from semel.cli.measuring import Sink, relay
from semel.errors import PublishError
from semel.sqlalchemy.dialects.scratch import PREFIX
from semel.sqlalchemy.scratch import scratch_storage
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.memory import InMemoryMessageBus
from tests.services import Database

QUESTIONS = [
    ("write", "without events"),
    ("write", "with 1 event"),
    ("write", "with 10 events"),
    ("relay", "into a sink"),
    ("commit to publish", "p50"),
    ("commit to publish", "p99"),
    ("inbox", "one by one"),
    ("inbox", "in batches of 100"),
]


def bench(url: str, *arguments: str) -> Result:
    with patch.dict(os.environ):
        os.environ.pop("SEMEL_BUS_URL", None)
        return CliRunner().invoke(
            app, ["bench", "--events", "100", *arguments], env={"SEMEL_DATABASE_URL": url}
        )


async def schemas(url: str) -> list[str]:
    async with SqlAlchemyStorage(url) as storage, storage.engine.connect() as connection:
        names = await connection.run_sync(lambda sync: inspect(sync).get_schema_names())
    return [name for name in names if name.startswith(PREFIX)]


@pytest.mark.parametrize("bus", ["memory://", "database://"])
def test_it_answers_every_question_and_leaves_nothing(sqlite: Database, tmp_path: Path, bus: str):
    done = bench(sqlite.url, "--json", "--bus", bus)
    assert 0 == done.exit_code, done.output
    figures = json.loads(done.stdout)["figures"]
    found = [(figure["question"], figure["side"]) for figure in figures]
    assert [*QUESTIONS, ("relay", "to the bus")] == found
    assert all(figure["figure"] > 0 for figure in figures)
    assert [] == list(tmp_path.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("database", ["postgres", "postgres-psycopg", "mariadb"], indirect=True)
async def test_its_tables_are_apart_and_gone_afterwards(database: Database):
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with scratch_storage(storage) as scratch:
            assert 1 == len(await schemas(database.url))
            [figure] = await relay(scratch, 50)
            assert 50 == (await scratch.outbox.stats()).counts["SENT"]
            assert 0 == (await storage.outbox.stats()).counts["SENT"]
    assert figure.figure > 0
    assert [] == await schemas(database.url)


async def test_its_tables_go_when_it_fails(postgres: Database):
    async with SqlAlchemyStorage(postgres.url) as storage:
        with pytest.raises(RuntimeError, match="in the middle"):
            async with scratch_storage(storage):
                raise RuntimeError("in the middle")
    assert [] == await schemas(postgres.url)


async def _hold_an_event(url: str) -> None:
    async with SqlAlchemyStorage(url) as storage:
        await storage.initialize()
        async with storage.unit_of_work() as uow:
            await uow.outbox.add("orders", {"n": 1})
            await uow.commit()


def test_it_refuses_a_database_in_use(sqlite: Database):
    asyncio.run(_hold_an_event(sqlite.url))
    done = bench(sqlite.url)
    assert 2 == done.exit_code
    assert "its outbox holds 1 NEW" in done.stderr
    assert "--anyway" in done.stderr


def test_it_measures_there_when_told(sqlite: Database):
    asyncio.run(_hold_an_event(sqlite.url))
    assert 0 == bench(sqlite.url, "--anyway").exit_code

    async def look() -> int:
        async with SqlAlchemyStorage(sqlite.url) as storage:
            return (await storage.outbox.stats()).counts["NEW"]

    assert 1 == asyncio.run(look()), "it is still there, unsent"


async def test_a_broker_that_refuses_ends_it(sqlite: Database):
    """It does not try for ever."""
    async with (
        SqlAlchemyStorage(sqlite.url) as storage,
        scratch_storage(storage) as scratch,
        InMemoryMessageBus() as bus,
    ):
        refusing = Sink(bus)
        refusing.publish_many = _refuse  # type: ignore[method-assign]
        with pytest.raises(PublishError, match="not for you"):
            async with asyncio.timeout(60):
                await relay(scratch, 10, refusing)


async def _refuse(messages: list[object]) -> list[PublishError]:
    return [PublishError("not for you", kind="permanent")] * len(messages)
