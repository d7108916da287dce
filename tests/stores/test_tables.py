"""Tables that are missing, old or damaged, and what is stored in good ones."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text, update

from semel.errors import ConfigurationError, SchemaError
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import SLOTS
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.rows import slot_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxControl, metadata
from tests.services import Database
from tests.stores import shop


async def test_tables_that_do_not_exist(database: Database) -> None:
    """The commit fails with the command to run; afterwards the same session works."""
    async with SqlAlchemyStorage(database.url) as storage:
        with pytest.raises(SchemaError, match="semel db create"):
            await storage.ping()
        async with storage.session_factory() as session:
            await SqlAlchemyOutbox(session).add("t", 1, event_type="TooEarly")
            with pytest.raises(SchemaError, match="semel db create"):
                await session.commit()
            await session.rollback()
            await storage.initialize()
            await SqlAlchemyOutbox(session).add("t", 1, event_type="InTime")
            await session.commit()
        assert ["InTime"] == await shop.types(storage)


async def test_fm_p11_tables_of_another_version(database: Database) -> None:
    """An older or half-made one names the upgrade, other counts the check; nothing is written."""
    for value, said in (
        ({"version": 0}, "semel db upgrade"),
        ({"version": 1, "hash": "md5", "slots": 8, "partitions": 4}, "semel db check"),
        ([], "semel db upgrade"),
        ({}, "semel db upgrade"),
    ):
        async with SqlAlchemyStorage(database.url) as storage:
            await storage.initialize()
            async with storage.engine.begin() as connection:
                await connection.execute(
                    update(OutboxControl).where(OutboxControl.name == "schema").values(value=value)
                )
            async with storage.session_factory() as session:
                await SqlAlchemyOutbox(session).add("t", 1)
                with pytest.raises(SchemaError, match=said):
                    await session.commit()
            assert [] == await shop.types(storage)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
async def test_finding_05_a_missing_slot_excludes_nobody(database: Database) -> None:
    """So it is an error: two writers could be in at once. `check` counts the slots."""
    slot = slot_of("default", "k", SLOTS)
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            assert SLOTS == await connection.scalar(text("SELECT count(*) FROM outbox_slot"))
            await connection.execute(text(f"DELETE FROM outbox_slot WHERE slot = {slot}"))
        async with storage.session_factory() as session:
            await SqlAlchemyOutbox(session).add("t", 1, key="k")
            with pytest.raises(SchemaError, match="outbox_slot"):
                await session.commit()
            await session.rollback()
        with pytest.raises(SchemaError, match="outbox_slot"):
            await storage.check()
        await storage.initialize()
        await storage.check()
        assert [] == await shop.types(storage)


async def test_a_foreign_outbox_table_is_left_alone(database: Database) -> None:
    """`initialize` refuses to mix with a table of the same name."""
    async with SqlAlchemyStorage(database.url) as storage:
        async with storage.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE outbox (id int)"))
        with pytest.raises(SchemaError, match="not semel's"):
            await storage.initialize()
        async with storage.engine.connect() as connection:
            names = await connection.run_sync(
                lambda sync: {name for name in metadata.tables if _has(sync, name)}
            )
        assert {"outbox"} == names


def _has(connection: Connection, name: str) -> bool:
    return bool(connection.dialect.has_table(connection, name))


@pytest.mark.parametrize("kept", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("setting", "said"),
    [("sql_mode = ''", "strict mode"), ("auto_increment_increment = 2", "multi-primary")],
)
async def test_fm_d12_servers_on_which_promises_would_not_hold(
    storage: SqlAlchemyStorage, kept: Database, setting: str, said: str
) -> None:
    """One that cuts long values, and one that numbers in several places (finding 6)."""
    options = {"init_command": f"SET SESSION {setting}"}
    async with SqlAlchemyStorage(kept.url, connect_args=options) as wrong:
        with pytest.raises(ConfigurationError, match=said):
            await wrong.ping()
        async with wrong.session_factory() as session:
            await SqlAlchemyOutbox(session).add("t", 1)
            with pytest.raises(ConfigurationError, match=said):
                await session.commit()
    assert [] == await shop.types(storage)


def test_databases_that_are_not_supported_are_named() -> None:
    """Before anything is sent to them."""
    from sqlalchemy.dialects import oracle

    with pytest.raises(ConfigurationError, match="oracle"):
        database_of(oracle.dialect())
