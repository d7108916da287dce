"""Tables made by the revisions: the same as created ones, upgraded with data, by many at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, make_url, select, text, update

from semel.errors import ConfigurationError, SchemaError
from semel.hub import Hub
from semel.projector import OutboxProjector
from semel.sqlalchemy.layout import OLDEST_VERSION, SCHEMA_VERSION, SLOTS
from semel.sqlalchemy.migrations import VERSION_TABLE, render, revision_of, upgrade
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxControl, metadata
from semel.transports.memory import InMemoryMessageBus
from tests.services import Database, fresh_database
from tests.stores.schemas import describe
from tests.stores.shop import SYNC_DRIVERS, Boom

OURS = frozenset(metadata.tables)


async def described(storage: SqlAlchemyStorage) -> dict[str, Any]:
    async with storage.engine.connect() as connection:
        return await connection.run_sync(lambda sync: describe(sync, OURS))


async def control(storage: SqlAlchemyStorage) -> dict[str, Any]:
    async with storage.engine.connect() as connection:
        rows = await connection.execute(select(OutboxControl.name, OutboxControl.value))
        return {row.name: row.value for row in rows}


async def stored_row(storage: SqlAlchemyStorage) -> Any:
    return (await control(storage))["schema"]


async def to(storage: SqlAlchemyStorage, version: int) -> None:
    """Make the tables of an earlier release."""
    async with storage.engine.begin() as connection:
        await connection.run_sync(lambda sync: upgrade(sync, version))


async def test_upgraded_and_created_tables_are_the_same(database: Database, tmp_path: Path) -> None:
    """Columns, types, keys, indexes, collations, storage settings, and what is in them."""
    (tmp_path / "created").mkdir()
    with fresh_database(database.name, tmp_path / "created") as other:
        async with (
            SqlAlchemyStorage(database.url) as upgraded,
            SqlAlchemyStorage(other.url) as created,
        ):
            await upgraded.upgrade()
            await created.initialize()

            expected = await described(created)
            assert expected == await described(upgraded)
            assert "ix_outbox_lane" in str(expected), "something was compared"
            assert await control(created) == await control(upgraded)
            await upgraded.check()


async def test_storage_settings_on_postgresql(postgres: Database) -> None:
    """They are there after each way of making the tables, and hold where rows change often."""
    async with SqlAlchemyStorage(postgres.url) as storage:
        await storage.initialize()
        async with storage.engine.connect() as connection:
            found = await connection.execute(
                text("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL")
            )
            options = {row.relname: set(row.reloptions) for row in found}
    for table in ("outbox", "inbox", "idempotency", "bus_message"):
        assert "autovacuum_vacuum_scale_factor=0.02" in options[table]
    for table in ("outbox_lease", "outbox_instance", "outbox_control", "bus_group"):
        assert "fillfactor=50" in options[table]


async def test_a_lease_that_is_renewed_touches_no_index(postgres: Database) -> None:
    """What the fill factor is for: there is room for the next version of each row on its page."""
    leases = 2000
    async with SqlAlchemyStorage(postgres.url) as storage:
        await storage.initialize()
        engine = storage.engine.execution_options(isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            await connection.execute(
                text(
                    "INSERT INTO outbox_lease SELECT '*', n, 'me', 1, now() "
                    f"FROM generate_series(1, {leases}) n"
                )
            )
            await connection.execute(text("UPDATE outbox_lease SET expires_at = now()"))
            await connection.execute(text("SELECT pg_stat_force_next_flush()"))
            found = await connection.execute(
                text(
                    "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
                    "WHERE relname = 'outbox_lease'"
                )
            )
            updates, heap_only = found.one()
    assert leases == updates
    assert heap_only > 0.9 * leases, "with a fill factor of 100 it is the last page only"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
async def test_upgrade_with_data(database: Database, tmp_path: Path, version: int) -> None:
    """New code works on old tables that it can work with; the upgrade keeps every row."""
    async with SqlAlchemyStorage(database.url) as storage:
        await to(storage, version)
        assert version == (await stored_row(storage))["version"]
        if version < OLDEST_VERSION:
            with pytest.raises(SchemaError, match="semel db upgrade"):
                await storage.ping()
        else:
            await storage.ping()
            await _write(storage, "before")

        await storage.upgrade()
        assert SCHEMA_VERSION == (await stored_row(storage))["version"]
        await storage.check()
        await _write(storage, "after")
        assert ["before", "after"] == await _send_all(storage)
        upgraded = await described(storage)

    (tmp_path / "created").mkdir()
    with fresh_database(database.name, tmp_path / "created") as other:
        async with SqlAlchemyStorage(other.url) as created:
            await created.initialize()
            assert await described(created) == upgraded


async def _write(storage: SqlAlchemyStorage, name: str) -> None:
    async with storage.unit_of_work() as uow:
        await uow.outbox.add("orders", {"text": name}, key="k")
        assert await uow.inbox.try_mark_processed("m", "Paid") is (name == "before")
        await uow.commit()


async def _send_all(storage: SqlAlchemyStorage) -> list[Any]:
    bus = InMemoryMessageBus()
    await OutboxProjector(message_bus=bus, store=storage.relay).run_once()
    return [json.loads(message.body)["text"] for message in bus.published]


async def test_upgrade_follows_the_control_row(database: Database) -> None:
    """Tables of `initialize` are known as such, and so are tables that somebody dropped."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        before = await described(storage)
        await storage.upgrade()
        await storage.upgrade()
        assert before == await described(storage)
        async with storage.engine.begin() as connection:
            assert revision_of(SCHEMA_VERSION) == await connection.scalar(
                text(f"SELECT version_num FROM {VERSION_TABLE}")
            )
            await connection.run_sync(metadata.drop_all)
        await storage.upgrade()
        assert before == await described(storage)
        await storage.check()


async def test_create_leaves_old_tables_to_the_upgrade(database: Database) -> None:
    """`initialize` adds nothing to tables of an earlier release."""
    async with SqlAlchemyStorage(database.url) as storage:
        await to(storage, 1)
        async with storage.engine.begin() as connection:
            await connection.execute(text("DROP TABLE audit"))
        await storage.initialize()
        async with storage.engine.connect() as connection:
            assert not await connection.run_sync(lambda sync: inspect(sync).has_table("audit"))


async def test_many_upgrade_at_once(database: Database) -> None:
    """As when all instances of a service start: one does it, nobody fails."""
    storages = [SqlAlchemyStorage(database.url) for _ in range(6)]
    try:
        await asyncio.gather(*(storage.upgrade() for storage in storages))
        await storages[0].check()
        async with storages[0].engine.connect() as connection:
            assert 1 == await connection.scalar(text(f"SELECT count(*) FROM {VERSION_TABLE}"))
    finally:
        for storage in storages:
            await storage.close()


async def test_upgrade_while_others_work(database: Database) -> None:
    """Writers and a projector on the old tables notice nothing."""
    count = 30
    async with SqlAlchemyStorage(database.url) as storage:
        await to(storage, 1)
        begun = asyncio.Event()

        async def write() -> None:
            for number in range(count):
                async with storage.unit_of_work() as uow:
                    await uow.outbox.add("orders", {"text": number}, key="k")
                    await uow.commit()
                begun.set()

        bus = InMemoryMessageBus()
        hub = Hub("shop", storage=storage, bus=bus)
        async with asyncio.timeout(60), hub.running():
            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                await begun.wait()
                async with SqlAlchemyStorage(database.url) as other:
                    await other.upgrade()
            await hub.drain()
            sent = [json.loads(message.body)["text"] for message in bus.published]
        assert list(range(count)) == sent
        await storage.check()


async def test_tables_in_another_schema_of_the_search_path(postgres: Database) -> None:
    """They are found where the role finds them, not only in its first schema."""
    async with SqlAlchemyStorage(postgres.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            await connection.execute(text("CREATE SCHEMA mine"))
    options = {"server_settings": {"search_path": "mine, public"}}
    async with SqlAlchemyStorage(postgres.url, connect_args=options) as storage:
        await storage.initialize()
        await storage.upgrade()
        async with storage.engine.connect() as connection:
            found = await connection.scalars(
                text(
                    "SELECT DISTINCT table_schema FROM information_schema.tables "
                    "WHERE table_name IN ('outbox', 'inbox', 'outbox_control')"
                )
            )
            assert ["public"] == list(found)


@pytest.mark.parametrize(
    ("database", "statement"),
    [
        ("mariadb", "CREATE TABLE outbox "),
        ("mariadb", "CREATE TABLE inbox "),
        ("mariadb", "CREATE INDEX ix_outbox_lane"),
        ("mariadb", "INSERT INTO outbox_slot"),
        ("mariadb", "INSERT INTO outbox_control"),
        ("mariadb", "UPDATE outbox_control"),
        ("mariadb", "INSERT INTO semel_version"),
        ("postgres", "INSERT INTO outbox_control"),
        ("sqlite", "INSERT INTO outbox_control"),
    ],
    indirect=["database"],
)
async def test_an_upgrade_that_was_interrupted_goes_on(
    database: Database, tmp_path: Path, statement: str
) -> None:
    """MySQL keeps what was made so far; the next attempt makes the rest."""
    async with SqlAlchemyStorage(database.url) as storage:
        with failing_at(storage.engine.sync_engine, statement), pytest.raises(Boom):
            await storage.upgrade()
        if VERSION_TABLE in statement:
            assert 1 == (await stored_row(storage))["version"], "that step was finished"
        else:
            with pytest.raises(SchemaError, match="semel db"):
                await storage.ping()
        await storage.upgrade()
        await storage.check()
        finished = await described(storage)
        async with storage.engine.connect() as connection:
            assert SLOTS == await connection.scalar(text("SELECT count(*) FROM outbox_slot"))
        rows = await control(storage)
    (tmp_path / "created").mkdir()
    with fresh_database(database.name, tmp_path / "created") as other:
        async with SqlAlchemyStorage(other.url) as created:
            await created.initialize()
            assert await described(created) == finished
            assert await control(created) == rows


@contextmanager
def failing_at(engine: Engine, statement: str) -> Iterator[None]:
    """Break down at the first statement that begins like that."""

    def look(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.lstrip().startswith(statement.lstrip()):
            raise Boom

    event.listen(engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", look)


async def test_a_foreign_outbox_table_is_left_alone(database: Database) -> None:
    async with SqlAlchemyStorage(database.url) as storage:
        async with storage.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE outbox (id int)"))
        with pytest.raises(SchemaError, match="not semel's"):
            await storage.upgrade()
        async with storage.engine.connect() as connection:
            names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
        assert ["outbox"] == names


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"version": OLDEST_VERSION - 1}, "semel db upgrade"),
        ({"version": SCHEMA_VERSION + 5}, "install the release"),
        ({"version": SCHEMA_VERSION + 5, "compatible": SCHEMA_VERSION + 1}, "install the release"),
        ({"version": SCHEMA_VERSION + 5, "compatible": SCHEMA_VERSION}, None),
    ],
)
async def test_code_on_tables_of_another_release(
    database: Database, row: dict[str, int], said: str | None
) -> None:
    """It works on those that say that it can, and tells what to do about the others."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        row = await stored_row(storage) | {"compatible": row["version"]} | row
        async with storage.engine.begin() as connection:
            await connection.execute(
                update(OutboxControl).where(OutboxControl.name == "schema").values(value=row)
            )
        if said is None:
            await _write(storage, "before")
            await storage.upgrade()
        else:
            with pytest.raises(SchemaError, match=said):
                await _write(storage, "before")
        if said != "semel db upgrade":
            assert row == await stored_row(storage), "an upgrade leaves newer tables alone"


@pytest.mark.parametrize(
    ("database", "dialect"),
    [
        ("sqlite", "sqlite"),
        ("postgres", "postgresql"),
        ("mariadb", "mysql"),
        ("mariadb", "mariadb"),
    ],
    indirect=["database"],
)
@pytest.mark.parametrize("since", range(SCHEMA_VERSION))
async def test_sql_for_others_to_run(
    database: Database, dialect: str, tmp_path: Path, since: int
) -> None:
    """The script makes what the upgrade makes, from nothing and from each earlier version."""
    async with SqlAlchemyStorage(database.url) as storage:
        if since:
            await to(storage, since)
        await asyncio.to_thread(_run_script, database, render(dialect, since=since))
        await storage.check()
        by_script = await described(storage)
        assert SCHEMA_VERSION == (await stored_row(storage))["version"]
    (tmp_path / "other").mkdir()
    with fresh_database(database.name, tmp_path / "other") as other:
        async with SqlAlchemyStorage(other.url) as upgraded:
            await upgraded.upgrade()
            assert await described(upgraded) == by_script


def _run_script(database: Database, script: str) -> None:
    url = make_url(database.url).set(drivername=SYNC_DRIVERS[database.name])
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        lines = [line for line in script.splitlines() if not line.startswith("--")]
        for statement in "\n".join(lines).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.strip().removesuffix(";").replace("%", "%%"))
    engine.dispose()


def test_versions_that_do_not_exist() -> None:
    for version in (-1, SCHEMA_VERSION + 1):
        with pytest.raises(ConfigurationError, match=f"1 to {SCHEMA_VERSION}"):
            render("sqlite", since=version)
