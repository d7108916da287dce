"""Row-level security on PostgreSQL, with roles that are restricted in earnest."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import insert, make_url, select, text
from sqlalchemy.exc import DBAPIError

from semel.consumer import EventConsumer
from semel.errors import ConfigurationError, TransactionMisuseError
from semel.projector import OutboxProjector
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import AuditRecord, InboxRecord, OutboxRecord
from semel.sqlalchemy.tenants import row_level_security, use_tenant
from semel.states import IdempotencyKey, Verdict
from semel.transports.memory import InMemoryMessageBus
from tests.services import Database, fresh_database
from tests.stores.shop import until

REFUSED = "row-level security policy"


@dataclass
class Roles:
    """The same database, as three roles see it."""

    owner: SqlAlchemyStorage
    relay: SqlAlchemyStorage
    app: SqlAlchemyStorage


@pytest.fixture(params=["postgres", "postgres-psycopg"])
def database(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database(request.param, tmp_path) as fresh:
        yield fresh


@pytest.fixture
async def roles(database: Database) -> AsyncIterator[Roles]:
    """Two fresh login roles, neither owner nor superuser; their names need quoting."""
    url = make_url(database.url)
    password = secrets.token_hex(8)
    names = {kind: f'semel-{kind}"{secrets.token_hex(4)}' for kind in ("app", "relay")}
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(plain, autocommit=True)) as server:
        for name in names.values():
            server.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                    sql.Identifier(name), sql.Literal(password)
                )
            )
        try:
            storages = [
                SqlAlchemyStorage(
                    url.set(username=names[kind], password=password),
                    row_level_security=kind == "app",
                    pool_size=1,
                    max_overflow=5,
                )
                for kind in ("relay", "app")
            ]
            async with SqlAlchemyStorage(database.url) as owner, storages[0], storages[1]:
                await owner.upgrade()
                script = row_level_security(
                    "postgresql", tenant_role=names["app"], relay_role=names["relay"]
                )
                server.execute(script.encode())
                server.execute(script.encode())  # again, as an operator may
                yield Roles(owner, *storages)
        finally:
            for name in names.values():
                server.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
                server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


async def write(roles: Roles, tenant: str, key: str = "k") -> None:
    async with roles.app.unit_of_work(tenant_id=tenant) as uow:
        await uow.outbox.add("orders", {"of": tenant}, key=key)
        assert await uow.inbox.try_mark_processed("m", "Paid")
        await uow.commit()


async def test_a_tenant_sees_its_own_rows(roles: Roles) -> None:
    """The same id in two inboxes is two messages; nobody sees the other's rows."""
    for tenant in ("acme", "globex"):
        await write(roles, tenant)
    for tenant in ("acme", "globex"):
        async with roles.app.unit_of_work(tenant_id=tenant) as uow:
            for table in (OutboxRecord, InboxRecord):
                assert [tenant] == list(await uow.session.scalars(select(table.tenant_id)))
            await uow.rollback()
            assert [tenant] == list(await uow.session.scalars(select(OutboxRecord.tenant_id)))
    async with roles.relay.session_factory() as session:
        found = await session.scalars(select(OutboxRecord.tenant_id))
        assert ["acme", "globex"] == sorted(found)


async def test_who_names_no_tenant_sees_nothing(roles: Roles) -> None:
    """Also on a pooled connection that served a tenant before."""
    for before in (None, "acme"):
        if before is not None:
            await write(roles, before)
        async with roles.app.session_factory() as session:
            assert [] == list(await session.scalars(select(OutboxRecord.id)))
            assert [] == list(await session.scalars(select(InboxRecord.message_id)))
            await SqlAlchemyOutbox(session, "acme").add("orders", 1)
            with pytest.raises(DBAPIError, match=REFUSED):
                await session.commit()


async def test_a_tenant_writes_nothing_for_another(roles: Roles) -> None:
    """Neither events nor inbox rows; and events that are written are not to be changed."""
    await write(roles, "globex")
    async with roles.app.unit_of_work(tenant_id="acme") as uow:
        await uow.outbox.add("orders", 1)
        await SqlAlchemyOutbox(uow.session, "globex").add("orders", 2)
        with pytest.raises(DBAPIError, match=REFUSED):
            await uow.commit()
    statement = insert(InboxRecord).values(
        tenant_id="globex",
        consumer_name="c",
        message_id="forged",
        event_type="Paid",
        received_at=text("now()"),
    )
    async with roles.app.unit_of_work(tenant_id="acme") as uow:
        with pytest.raises(DBAPIError, match=REFUSED):
            await uow.session.execute(statement)
    async with roles.app.unit_of_work(tenant_id="acme") as uow:
        gone = await uow.session.execute(text("DELETE FROM inbox"))
        assert 0 == gone.rowcount
        moved = await uow.session.execute(text("UPDATE inbox SET status = 'DEAD'"))
        assert 0 == moved.rowcount
        await uow.commit()
    for forbidden in (
        "UPDATE outbox SET status = 'SENT'",
        "DELETE FROM outbox",
        "SELECT * FROM audit",
        "SELECT * FROM outbox_lease",
        "UPDATE outbox_control SET value = '0'",
    ):
        async with roles.app.unit_of_work(tenant_id="globex") as uow:
            with pytest.raises(DBAPIError, match="permission denied"):
                await uow.session.execute(text(forbidden))
    async with roles.relay.session_factory() as session:
        rows = (await session.execute(select(OutboxRecord.tenant_id, OutboxRecord.status))).all()
        assert [("globex", "NEW")] == [tuple(row) for row in rows]
        inbox = await session.execute(select(InboxRecord.message_id, InboxRecord.status))
        assert [("m", "PROCESSED")] == [tuple(row) for row in inbox]


async def test_the_relay_serves_all_tenants(roles: Roles) -> None:
    """It publishes, repairs and cleans up; its role passes `db check`, too."""
    for number, tenant in enumerate(("acme", "globex", "acme")):
        async with roles.app.unit_of_work(tenant_id=tenant) as uow:
            await uow.outbox.add("orders", number, key="k")
            await uow.commit()
    await roles.relay.check()
    bus = InMemoryMessageBus()
    projector = OutboxProjector(message_bus=bus, store=roles.relay.relay, tenant_id=None)
    assert 3 == await projector.run_once()
    assert 3 == await roles.relay.outbox.cleanup(older_than=timedelta(0))
    async with roles.relay.engine.begin() as connection:
        await connection.execute(
            insert(AuditRecord).values(at=text("now()"), actor="me", action="test")
        )


@pytest.mark.parametrize("batch_size", [1, 10])
async def test_consumers_work_for_one_tenant_at_a_time(roles: Roles, batch_size: int) -> None:
    """Also in batches: one with several tenants is done message by message."""
    tenants = ["acme", "acme", "globex", "acme"]
    bus = InMemoryMessageBus()
    seen: list[tuple[str, list[str]]] = []
    consumer = EventConsumer("shop", "orders", storage=roles.app, bus=bus, batch_size=batch_size)

    @consumer.on("orders")
    async def handle(message: Any, uow: Any) -> None:
        visible = await uow.session.scalars(select(InboxRecord.tenant_id).distinct())
        seen.append((message.tenant_id, list(visible)))
        await uow.outbox.add("answers", 1)

    for tenant in tenants:
        async with roles.app.unit_of_work(tenant_id=tenant) as uow:
            await uow.outbox.add("orders", 1)
            await uow.commit()
    projector = OutboxProjector(message_bus=bus, store=roles.relay.relay, tenant_id=None)
    assert len(tenants) == await projector.run_once()
    await consumer.start()
    try:
        await until(lambda: _is_done(roles, len(tenants)))
    finally:
        await consumer.stop()
    assert all([tenant] == visible for tenant, visible in seen)
    async with roles.relay.session_factory() as session:
        answers = select(OutboxRecord.tenant_id).where(OutboxRecord.topic == "answers")
        assert sorted(tenants) == sorted(await session.scalars(answers))


async def _is_done(roles: Roles, count: int) -> bool:
    async with roles.relay.session_factory() as session:
        return count == len((await session.scalars(select(InboxRecord.message_id))).all())


async def test_a_transaction_has_one_tenant(roles: Roles) -> None:
    """A second one is refused at once; the next transaction of the session may have another."""
    async with roles.app.session_factory() as session:
        await session.run_sync(use_tenant, "acme")
        await session.execute(text("SELECT 1"))
        with pytest.raises(TransactionMisuseError, match="another tenant"):
            await session.run_sync(use_tenant, "globex")
        async with roles.app.unit_of_work(tenant_id="acme", session=session) as uow:
            await uow.outbox.add("orders", 1)
            await uow.commit()
        await session.commit()
        await session.run_sync(use_tenant, "globex")
        assert [] == list(await session.scalars(select(OutboxRecord.id)))


async def test_the_tenant_survives_a_savepoint(roles: Roles) -> None:
    """Set inside or outside of one that is rolled back."""
    async with roles.app.session_factory() as session:
        await session.execute(text("SELECT 1"))
        nested = await session.begin_nested()
        async with roles.app.unit_of_work(tenant_id="acme", session=session) as uow:
            await uow.inbox.try_mark_processed("gone", "Paid")
        await nested.rollback()
        async with roles.app.unit_of_work(tenant_id="acme", session=session) as uow:
            assert await uow.inbox.try_mark_processed("kept", "Paid")
            nested = await session.begin_nested()
            await nested.rollback()
            assert await uow.inbox.is_processed("kept")
        await session.commit()


async def test_idempotency_keys_in_the_unit_of_work(roles: Roles) -> None:
    """The same key of two tenants is two keys, and neither tells of the other."""
    for tenant in ("acme", "globex"):
        key = IdempotencyKey(
            tenant_id=tenant, principal="p", method="POST", route="/orders", key_hash="0" * 64
        )
        async with roles.app.unit_of_work(tenant_id=tenant) as uow:
            claim = await roles.app.idempotency.claim(
                key,
                fingerprint="f",
                lease=timedelta(seconds=30),
                keep=timedelta(hours=1),
                session=uow.session,
            )
            assert Verdict.CLAIMED is claim.verdict
            found = await uow.session.scalars(text("SELECT tenant_id FROM idempotency"))
            assert [tenant] == list(found)
            await uow.session.commit()


def test_bad_input() -> None:
    """Each is told before any SQL is written."""
    for roles in (("app", None), (None, "relay"), ("same", "same")):
        with pytest.raises(ConfigurationError, match="two roles"):
            row_level_security("postgresql", tenant_role=roles[0], relay_role=roles[1])
    for dialect in ("sqlite", "mysql", "oracle"):
        with pytest.raises(ConfigurationError, match="only postgresql"):
            row_level_security(dialect, tenant_role="a", relay_role="b")
    with pytest.raises(ConfigurationError, match="only postgresql"):
        SqlAlchemyStorage("sqlite+aiosqlite:///x.db", row_level_security=True)
