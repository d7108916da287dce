"""Each misconfiguration is planted on a real server, and the doctor finds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from semel import ConfigurationError, Hub, InMemoryMessageBus, Retention, SqlAlchemyStorage
from semel.doctor import examine_hub, examine_settings
from semel.sqlalchemy.doctor import examine_database
from semel.testing import FakeClock
from tests.cli.conftest import Cli, both
from tests.cli.pooler import pooler

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)
on_mariadb = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
everywhere = pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)

BROKEN_INDEX = (
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_outbox_lane'::regclass"
)


def plant(cli: Cli, *statements: str) -> None:
    """Execute statements; `{db}` is the test's own database."""

    async def work(storage: Any) -> None:
        async with storage.engine.execution_options(
            isolation_level="AUTOCOMMIT"
        ).connect() as connection:
            for statement in statements:
                name = make_url(cli.url).database
                await connection.execute(text(statement.replace("{db}", str(name))))

    cli.do(work)


def codes(cli: Cli, *options: str) -> set[str]:
    """The codes of what is not just information; each finding tells what to do."""
    done = cli("doctor", "--json", *options)
    assert done.exit_code in (0, 1), done.output

    answer = json.loads(done.stdout)
    for finding in answer["findings"]:
        assert {"severity", "code", "sentence", "fix"} == set(finding)
        assert finding["fix"]
    problems = [item["code"] for item in answer["findings"] if item["severity"] != "info"]
    assert answer["problems"] == len(problems)
    assert done.exit_code == bool(problems)
    return set(problems)


@everywhere
def test_a_healthy_database(cli: Cli) -> None:
    """Nothing is found on a fresh installation that `db upgrade` made."""
    cli.do(lambda storage: storage.upgrade())
    assert set() == codes(cli)
    assert "no problem found" in cli("doctor").stdout


@on_postgres
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("ALTER DATABASE {db} SET synchronous_commit = off", "synchronous-commit"),
        ("ALTER DATABASE {db} SET default_transaction_isolation = 'serializable'", "isolation"),
        ("ALTER DATABASE {db} SET default_transaction_read_only = on", "read-only"),
        ("ALTER TABLE outbox SET (autovacuum_enabled = off)", "autovacuum"),
        ("ALTER TABLE inbox RESET (autovacuum_vacuum_scale_factor)", "autovacuum-settings"),
        ("ALTER TABLE outbox ALTER COLUMN sequence SET CACHE 20", "schema"),
        (BROKEN_INDEX, "index"),
    ],
    ids=lambda value: value.split(" SET ")[-1][:40],
)
def test_postgresql(cli: Cli, statement: str, code: str) -> None:
    cli.do(lambda storage: storage.upgrade())
    plant(cli, statement)
    assert {code} == codes(cli)
    assert code in cli("doctor").stdout


@everywhere
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("DELETE FROM outbox_slot WHERE slot = 7", "schema"),
        ("DELETE FROM outbox_control WHERE name = 'schema'", "schema"),
        ("DROP INDEX ix_inbox_processed_at", "index"),
        ("DROP TABLE idempotency", "schema"),
    ],
)
def test_tables(cli: Cli, statement: str, code: str) -> None:
    """Slots, version and indexes are those that this release needs."""
    cli.do(lambda storage: storage.upgrade())
    if "mysql" in cli.url and "INDEX" in statement:
        statement += " ON inbox"
    plant(cli, statement)
    assert code in codes(cli)


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
def test_long_open_transactions(cli: Cli) -> None:
    """They are named with their connection; young ones are left alone."""
    cli.do(lambda storage: storage.upgrade())

    async def work(storage: Any) -> set[str]:
        async with storage.engine.connect() as connection:
            await connection.execute(text("SELECT slot FROM outbox_slot WHERE slot = 1 FOR UPDATE"))
            async with asyncio.timeout(60):
                while True:
                    found = await examine_database(storage, long_open=timedelta(seconds=1))
                    if found:
                        break
            assert [] == await examine_database(storage, long_open=timedelta(hours=1))
            return {finding.code for finding in found}

    assert {"long-transaction"} == cli.do(work)


@everywhere
def test_clocks_that_differ(cli: Cli) -> None:
    """By the clock of this machine, which a test can set."""
    cli.do(lambda storage: storage.upgrade())

    async def work(storage: Any) -> set[str]:
        clock = FakeClock()  # far from the database's
        return {finding.code for finding in await examine_database(storage, clock=clock)}

    assert {"clock"} == cli.do(work)


@on_postgres
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize(("mode", "found"), [("transaction", True), ("session", False)])
def test_poolers(cli: Cli, driver: str, mode: str, found: bool) -> None:
    """A pooler in transaction mode is found by experiment; one in session mode is fine."""
    cli.do(lambda storage: storage.upgrade())
    with pooler(cli.url, cli.folder, mode=mode) as url:
        through = make_url(url).set(drivername=f"postgresql+{driver}")
        pooled = Cli(through.render_as_string(hide_password=False), cli.folder)
        assert found is ("pooler" in codes(pooled))


@on_mariadb
@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("SET SESSION sql_mode = ''", "strict-mode"),
        ("SET SESSION auto_increment_increment = 2", "multi-primary"),
        ("SET SESSION tx_isolation = 'SERIALIZABLE'", "isolation"),
        ("SET SESSION tx_isolation = 'READ-UNCOMMITTED'", "isolation"),
        ("SET SESSION tx_read_only = 1", "read-only"),
    ],
)
def test_mariadb(cli: Cli, setting: str, code: str) -> None:
    """As the settings of a connection: those of the server are not the test's."""
    cli.do(lambda storage: storage.upgrade())

    def prepare(connection: Any) -> None:
        connection.execute(setting)

    assert {code} == _examined(cli, prepare)


@on_sqlite
@pytest.mark.parametrize(
    ("pragma", "code"),
    [
        ("PRAGMA synchronous = NORMAL", "synchronous-commit"),
        ("PRAGMA journal_mode = DELETE", "journal-mode"),
        ("PRAGMA query_only = ON", "read-only"),
    ],
)
def test_sqlite(cli: Cli, pragma: str, code: str) -> None:
    """A connect hook of the application may undo what semel sets."""
    cli.do(lambda storage: storage.upgrade())
    assert {code} == _examined(cli, lambda connection: connection.execute(pragma))


def _examined(cli: Cli, prepare: Callable[[Any], None]) -> set[str]:
    """What is found on connections that an application has set up its own way."""

    async def work() -> set[str]:
        engine = create_async_engine(cli.url)
        storage = SqlAlchemyStorage(engine)
        # After semel's own hook.
        event.listen(engine.sync_engine, "connect", lambda raw, _: prepare(raw.cursor()))
        try:
            return {finding.code for finding in await examine_database(storage)}
        finally:
            await storage.close()
            await engine.dispose()

    return asyncio.run(work())


def hub(storage: SqlAlchemyStorage, **options: Any) -> Hub:
    made = Hub("shop", storage=storage, bus=InMemoryMessageBus(), **options)
    made.consumer("orders")
    return made


@on_sqlite
def test_inbox_windows(cli: Cli) -> None:
    """Shorter than the retries, the bus's retention or the reach of a replay."""
    from semel import RetryPolicy

    storage = SqlAlchemyStorage(cli.url)
    day = timedelta(days=1)
    short = Retention(inbox=2 * day, redelivery_horizon=day, outbox_sent=day)
    assert [] == list(examine_settings(hub(storage)))
    assert [] == list(examine_settings(hub(storage, retention=short)))
    patient = Hub("shop", storage=storage, bus=InMemoryMessageBus(), retention=short)
    patient.consumer("orders", retry=RetryPolicy(max_attempts=100, max_seconds=86_400.0))
    assert ["inbox-window"] == [finding.code for finding in examine_settings(patient)]
    broker = Hub("shop", storage=storage, retention=short)  # the database keeps for 7 days
    assert ["inbox-window"] == [finding.code for finding in examine_settings(broker)]
    for kept in (None, 3 * day):
        replayed = Retention(inbox=2 * day, redelivery_horizon=day, outbox_sent=kept)
        found = list(examine_settings(hub(storage, retention=replayed)))
        assert ["replay-window"] == [finding.code for finding in found]
    with pytest.raises(ConfigurationError):
        Retention(inbox=day, redelivery_horizon=2 * day)
    forever = Retention(inbox=None, outbox_sent=None)
    assert [] == list(examine_settings(hub(storage, retention=forever)))
    asyncio.run(storage.close())


@on_sqlite
def test_a_broker_that_does_not_answer(cli: Cli) -> None:
    """It is a finding like the others, which are told all the same."""

    class Broken(InMemoryMessageBus):
        async def ping(self) -> None:
            raise OSError("no route to amqp://u:CANARY-7f3@h")

    async def work(storage: Any) -> list[Any]:
        return await examine_hub(Hub("shop", storage=storage, bus=Broken()))

    (finding,) = cli.do(work)
    assert "broker" == finding.code
    assert "CANARY-7f3" not in finding.sentence


@both
def test_a_database_without_tables(empty: Cli) -> None:
    """The way to make them is told."""
    assert {"schema"} == codes(empty)
    assert "semel db" in empty("doctor").stdout
