"""The fixtures of the tests themselves: each backend gives an empty database of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.services import BACKENDS, Database, fresh_database, mark, service_url, tool


async def table_names(url: str) -> list[str]:
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    finally:
        await engine.dispose()


async def test_a_database_is_empty_and_usable(database: Database) -> None:
    """A table made in it is there afterwards, and nothing else."""
    assert await table_names(database.url) == []
    engine = create_async_engine(database.url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE note (id INTEGER PRIMARY KEY)"))
        await connection.execute(text("INSERT INTO note VALUES (7)"))
    async with engine.connect() as connection:
        assert [7] == list(await connection.scalars(text("SELECT id FROM note")))
    await engine.dispose()
    assert ["note"] == await table_names(database.url)


def test_a_database_names_its_driver(database: Database) -> None:
    expected = {
        "sqlite": "sqlite+aiosqlite",
        "postgres": "postgresql+asyncpg",
        "postgres-psycopg": "postgresql+psycopg",
        "mariadb": "mysql+asyncmy",
    }
    assert expected[database.name] == make_url(database.url).drivername


@pytest.mark.parametrize("database", ["sqlite", "mariadb"], indirect=True)
def test_a_test_can_choose_its_backends(database: Database, request: pytest.FixtureRequest) -> None:
    assert database.name in ("sqlite", "mariadb")
    assert request.node.get_closest_marker(mark(database.name))


async def test_single_fixtures(sqlite: Database, postgres: Database, mariadb: Database) -> None:
    """A test may have one of each, and each is private."""
    for each in (sqlite, postgres, mariadb):
        assert await table_names(each.url) == []
    assert len({sqlite.url, postgres.url, mariadb.url}) == 3


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("postgres-psycopg", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
async def test_dropping_ends_a_lingering_transaction(backend: str, tmp_path: Path) -> None:
    """A test that dies inside a transaction does not hold up the ones after it."""
    with fresh_database(backend, tmp_path) as fresh:
        engine = create_async_engine(fresh.url)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE note (id INTEGER PRIMARY KEY)"))
        lingering = await engine.connect()
        await lingering.execute(text("INSERT INTO note VALUES (1)"))
    await lingering.invalidate()
    await lingering.close()
    await engine.dispose()


@pytest.mark.parametrize("ci", [True, False])
def test_a_missing_server_skips_on_a_laptop_and_fails_in_ci(
    ci: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEMEL_TEST_KAFKA_URL", raising=False)
    monkeypatch.setenv("CI", "true" if ci else "")
    expected = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(expected, match="no server: kafka"):
        service_url("kafka")


@pytest.mark.parametrize("ci", [True, False])
def test_a_missing_program_skips_on_a_laptop_and_fails_in_ci(
    ci: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true" if ci else "")
    expected = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(expected, match="no program: promtool"):
        tool("promtool")


def test_a_server_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_TEST_NATS_URL", "nats://127.0.0.1:4222")
    assert service_url("nats") == "nats://127.0.0.1:4222"


def test_every_backend_is_known() -> None:
    assert ["sqlite", "postgres", "postgres-psycopg", "mariadb"] == list(BACKENDS)
