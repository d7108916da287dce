"""Rows of the catalogue of failure modes that no other story tells."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import DBAPIError

from semel import Hub, MessageEnvelope
from semel.inbox import ConsumerInbox
from semel.opentelemetry import OpenTelemetryObserver
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.cli.pooler import pooler
from tests.scenarios.consuming import names, perform, prepare
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    config,
    each_database,
    eventually,
    keyed,
    projector,
    rows,
    running,
    sqlite_only,
    statuses,
    untouched,
)
from tests.services import Database

postgres_only = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@postgres_only
async def test_fm_r05_a_batch_that_takes_longer_than_the_lease(storage: SqlAlchemyStorage) -> None:
    """The lease is renewed meanwhile: nobody else takes over, nothing is sent twice."""
    first = asyncio.Event()

    async def slowly(messages: Sequence[MessageEnvelope]) -> None:
        if not first.is_set():
            first.set()
            await asyncio.sleep(6.5)

    bus = ScriptedBus(slowly)
    await add_many(storage, keyed(20, 4))
    one, two = (projector(storage, bus, lease_seconds=3) for _ in range(2))
    async with running(one):
        await first.wait()
        async with running(two):
            await eventually(lambda: all_sent(storage), seconds=60)

    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())
    await untouched(storage)


@postgres_only
async def test_fm_r26_a_database_that_turns_read_only(
    storage: SqlAlchemyStorage, database: Database
) -> None:
    """A primary that was demoted: the relay waits, costs no event an attempt, and goes on."""
    name = storage.engine.url.database
    bus = ScriptedBus()
    async with SqlAlchemyStorage(database.url) as served, running(projector(served, bus)):
        await add(storage, "before", key="k")
        await eventually(lambda: bus.published_ids() == ["before"])
        with closing(psycopg.connect(plain(database), autocommit=True)) as admin:
            admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            try:
                end_others(admin)
                with pytest.raises(DBAPIError):
                    await add(served, "refused", key="k")
                await eventually(lambda: nobody_leads(admin))
            finally:
                admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
                end_others(admin)
        await eventually(lambda: added(served, "after"), seconds=60)
        await eventually(lambda: "after" in bus.published_ids(), seconds=60)
    assert ["before", "after"] == list(dict.fromkeys(bus.published_ids()))
    await untouched(storage)


async def added(storage: SqlAlchemyStorage, event_id: str) -> bool:
    try:
        await add(storage, event_id, key="k")
    except DBAPIError:
        return False  # a connection that was cut is noticed when it is used
    return True


def plain(database: Database) -> str:
    url = make_url(database.url).set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def nobody_leads(connection: psycopg.Connection) -> bool:
    """Tell whether all leases have run out, because nobody could renew them."""
    found = connection.execute("SELECT count(*) FROM outbox_lease WHERE expires_at > now()")
    return found.fetchone() == (0,)


def end_others(connection: psycopg.Connection) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
async def test_fm_d06_reading_needs_no_temporary_tables(storage: SqlAlchemyStorage) -> None:
    """Relay and database bus read many lanes at once, and write nothing to disk for it.

    MariaDB 10.11 does not survive that the files of such tables vanish, by another server that
    starts in the same folder.
    """
    seen: dict[str, Any] = {}

    @event.listens_for(storage.engine.sync_engine, "before_cursor_execute")
    def remember(_connection: object, _cursor: object, sql: str, parameters: Any, *_: Any) -> None:
        if "UNION ALL" in sql:
            seen[sql] = parameters

    hub = Hub("shop", storage=storage, config=config())
    handled = []

    @hub.on("orders", "orders")
    async def handle(message: MessageEnvelope) -> None:
        handled.append(message.event_id)

    async with hub.running():
        await add_many(storage, keyed(40, 10))
        await eventually(lambda: len(handled) == 40, seconds=60)
        async with storage.engine.connect() as connection:
            for sql, parameters in list(seen.items()):
                plan = await connection.exec_driver_sql(f"EXPLAIN {sql}", parameters)
                for line in plan.mappings():
                    assert line["select_type"] in ("PRIMARY", "UNION"), line
                    assert "temporary" not in (line["Extra"] or ""), line
    for table in ("outbox", "bus_message"):
        assert any(f"FROM {table}" in sql for sql in seen)


@postgres_only
async def test_fm_d06_a_server_without_free_connections(
    storage: SqlAlchemyStorage, database: Database
) -> None:
    """53300 for everybody: events wait as they are, and leave when there is room again."""
    name = storage.engine.url.database
    role = f"guest_{name}"
    bus = ScriptedBus()
    with closing(psycopg.connect(plain(database), autocommit=True)) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'guest'")
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
        guest = make_url(database.url).set(username=role, password="guest")
        try:
            async with (
                SqlAlchemyStorage(guest.render_as_string(hide_password=False)) as served,
                running(projector(served, bus)),
            ):
                await add(storage, "before")
                await eventually(lambda: bus.published_ids() == ["before"])
                admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
                end_others(admin)
                await eventually(lambda: added(storage, "during"))
                await eventually(lambda: nobody_leads(admin))
                assert ["before"] == bus.published_ids()
                admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
                await eventually(lambda: "during" in bus.published_ids(), seconds=60)
        finally:
            admin.execute(f"DROP OWNED BY {role} CASCADE")
            admin.execute(f"DROP ROLE {role}")
    await untouched(storage)


@sqlite_only
async def test_fm_d06_a_disk_that_is_full(storage: SqlAlchemyStorage) -> None:
    """SQLITE_FULL: the caller's transaction fails as a whole; what is committed gets out."""
    pages = [2**31 - 2]

    @event.listens_for(storage.engine.sync_engine, "checkout")
    def limit(connection: object, *_: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute(f"PRAGMA max_page_count = {pages[0]}")
        cursor.close()

    bus = ScriptedBus()
    await add_many(storage, keyed(40, 4))
    async with storage.engine.connect() as connection:
        pages[0] = await connection.scalar(text("PRAGMA page_count"))
    async with storage.unit_of_work() as uow:
        for number in range(200):
            await uow.outbox.add("orders", "x" * 10_000, event_id=f"lost-{number}")
        with pytest.raises(DBAPIError, match="full"):
            await uow.commit()
    async with running(projector(storage, bus)):
        await eventually(lambda: len(set(bus.published_ids())) == 40)
        pages[0] = 2**31 - 2
        await eventually(lambda: all_sent(storage), seconds=60)

    assert 40 == len(await rows(storage))
    assert_ordered(bus.published_ids())
    await untouched(storage)


async def test_fm_d15_a_database_restored_from_a_backup(sqlite: Database, tmp_path: Path) -> None:
    """The producer forgets that it has sent: the same ids come again, and have no effect."""
    file, backup = Path(make_url(sqlite.url).database or ""), tmp_path / "backup.db"
    bus = ScriptedBus()
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        await add_many(storage, keyed(10, 2))
    shutil.copy(file, backup)  # the last connection has brought the journal into the file
    for _ in range(2):
        shutil.copy(backup, file)
        async with SqlAlchemyStorage(sqlite.url) as storage:
            assert {"NEW": 10} == await statuses(storage)
            async with running(projector(storage, bus)):
                await eventually(lambda it=storage: all_sent(it))

    async with SqlAlchemyStorage(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}") as other:
        await prepare(other)
        inbox = ConsumerInbox(other, consumer_name="billing")
        for event_id in bus.published_ids():
            payload = {"name": event_id}
            await inbox.process_idempotent(event_id, "orders", "Placed", payload, perform)
        effects = await names(other)
    assert 20 == len(bus.published_ids())
    assert_no_duplicates(effects)
    assert 10 == len(effects)


@postgres_only
async def test_fm_d16_behind_a_pooler_of_transactions(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
) -> None:
    """A real PgBouncer: no session state is relied on, and polling stands in for NOTIFY."""
    with pooler(database.url, tmp_path, mode="transaction") as url:
        options = {
            "connect_args": {
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: "",
            },
            "notify": False,
        }
        async with SqlAlchemyStorage(url, **options) as pooled:
            bus = ScriptedBus()
            async with running(projector(pooled, bus), projector(pooled, bus)):
                for number in range(5):
                    await add_many(pooled, keyed(20, 5, prefix=f"r{number}x"))
                await eventually(lambda: all_sent(storage), seconds=60)
    assert 100 == len(bus.published_ids())
    assert_ordered(bus.published_ids())
    await untouched(storage)


@sqlite_only
async def test_fm_o07_an_outage_does_not_flood_the_log(
    storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of refused tries are a few lines: when it begins, when it lasts, when it ends."""
    caplog.set_level(logging.INFO)
    bus = ScriptedBus()
    bus.faults.outage = True
    quick = {"breaker_max_seconds": 0.02, "breaker_alert_seconds": 0.5}
    await add_many(storage, keyed(200, 20))
    async with running(projector(storage, bus, **quick)):
        await eventually(lambda: bus.pings + len(bus.tries) > 100, seconds=60)
        during = [record.getMessage() for record in caplog.records]
        bus.faults.outage = False
        await eventually(lambda: all_sent(storage), seconds=60)
    assert 1 <= len(during) <= 6, during
    await untouched(storage)


class Blackhole(SpanExporter):
    """A tracing backend that takes the connection and never answers."""

    def __init__(self) -> None:
        self.waiting, self.release = threading.Event(), threading.Event()

    def export(self, spans: object) -> SpanExportResult:
        self.waiting.set()
        self.release.wait(60)
        return SpanExportResult.FAILURE


@sqlite_only
async def test_fm_o08_a_tracing_backend_that_hangs(storage: SqlAlchemyStorage) -> None:
    """Spans are lost; events are not held up."""
    exporter = Blackhole()
    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter, schedule_delay_millis=10, max_queue_size=64, max_export_batch_size=16
        )
    )
    observer = OpenTelemetryObserver(tracer_provider=provider)
    bus = ScriptedBus()
    storage.observer = observer
    try:
        async with running(projector(storage, bus, observer=observer)):
            await add(storage, "first")
            await eventually(exporter.waiting.is_set)
            await add_many(storage, keyed(300, 10))
            await eventually(lambda: all_sent(storage), seconds=60)
            assert not exporter.release.is_set()
    finally:
        exporter.release.set()
        provider.shutdown()
    assert 301 == len(bus.published_ids())


@each_database
async def test_fm_t05_a_tenant_does_not_leak_between_tasks(storage: SqlAlchemyStorage) -> None:
    """Tenants are arguments: tasks that share everything else keep theirs."""
    tenants = [f"t{number}" for number in range(8)]

    async def work(tenant: str) -> None:
        inbox = ConsumerInbox(storage, consumer_name="billing", tenant_id=tenant)
        for number in range(3):
            await add(storage, f"{tenant}-{number}", tenant_id=tenant)
            payload = {"name": f"{tenant}-{number}"}
            await inbox.process_idempotent(f"m-{number}", "orders", "Placed", payload, perform)

    await asyncio.gather(*(work(tenant) for tenant in tenants))

    for found in (await rows(storage)).values():
        assert found.id.startswith(f"{found.tenant_id}-")
    assert sorted(f"{t}-{n}" for t in tenants for n in range(3)) == sorted(await names(storage))
