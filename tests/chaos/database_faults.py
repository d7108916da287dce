"""What happens to the database, and what operators do meanwhile."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import make_url, select, text, update

from semel import OutboxRecord, SqlAlchemyStorage, bus_from_url
from semel.dead_letters import revive
from semel.operations import Verb
from tests.chaos.plan import KEYS, TENANTS, TOPICS
from tests.chaos.tables import Stream

if TYPE_CHECKING:
    from tests.chaos.nemesis import Fault, Nemesis

_SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE datname = :name "
    "AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = :name "
    "AND id <> CONNECTION_ID()",
}
_END = {"postgres": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
_LOCK = {
    "postgres": "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE",
    "mariadb": "LOCK TABLES outbox WRITE",
    "sqlite": "SELECT 1",  # its transactions lock the whole file
}
_RELOAD = "SELECT pg_reload_conf()"
_READ_ONLY = "default_transaction_read_only"


def _choose(nemesis: Nemesis, chance: random.Random) -> tuple[str, SqlAlchemyStorage]:
    return chance.choice((("db1", nemesis.storages.one), ("db2", nemesis.storages.two)))


async def terminated(nemesis: Nemesis, chance: random.Random) -> str | None:
    """Half of the connections of a database are ended by the server."""
    name, storage = _choose(nemesis, chance)
    database = make_url(getattr(nemesis.ground, name)).database
    kind = nemesis.plan.database
    async with storage.engine.connect() as connection:
        found = await connection.scalars(text(_SESSIONS[kind]), {"name": database})
        for each in [number for number in found if chance.random() < 0.5]:
            with suppress(Exception):  # it left by itself
                await connection.exec_driver_sql(_END[kind].format(each))
    return name


async def killed(nemesis: Nemesis, chance: random.Random) -> str | None:
    """SIGKILL of the whole server; it recovers from its log."""
    from tests.chaos.servers import start

    server = nemesis.ground.database_server
    assert server is not None
    async with nemesis.servers:
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(chance.random())
        await start(server)
        for storage in nemesis.storages.both:
            await storage.engine.dispose()
    return server.name


async def read_only(nemesis: Nemesis, chance: random.Random) -> str | None:
    """The server refuses to write, as one that has become a replica."""
    engine = nemesis.storages.one.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with nemesis.servers, engine.connect() as connection:
        await connection.exec_driver_sql(f"ALTER SYSTEM SET {_READ_ONLY} = on")
        await connection.exec_driver_sql(_RELOAD)
        try:
            await asyncio.sleep(0.5 + 2.5 * chance.random())
        finally:
            await connection.exec_driver_sql(f"ALTER SYSTEM RESET {_READ_ONLY}")
            await connection.exec_driver_sql(_RELOAD)
    return nemesis.plan.database


async def table_locked(nemesis: Nemesis, chance: random.Random) -> str | None:
    """Somebody holds the outbox, as a migration would."""
    name, storage = _choose(nemesis, chance)
    async with storage.engine.connect() as connection:
        await connection.exec_driver_sql(_LOCK[nemesis.plan.database])
        try:
            await asyncio.sleep(0.5 + 2.5 * chance.random())
        finally:
            if nemesis.plan.database == "mariadb":
                await connection.exec_driver_sql("UNLOCK TABLES")
            await connection.rollback()
    return name


async def idle_in_transaction(nemesis: Nemesis, chance: random.Random) -> str | None:
    """A transaction that has locked a key and added an event does nothing, and rolls back."""
    tenant, storage = chance.choice(TENANTS), nemesis.storages.one
    key = f"{tenant}-k{chance.randrange(KEYS)}"
    async with storage.unit_of_work(tenant_id=tenant) as uow:
        grown = update(Stream).where(Stream.id == key)
        await uow.session.execute(grown.values(version=Stream.version + 1))
        await uow.outbox.add("entries", {"key": key, "version": -1}, event_type="Appended", key=key)
        await asyncio.sleep(1 + 3 * chance.random())
    return key


async def cleanup(nemesis: Nemesis, chance: random.Random) -> str | None:
    """Sent rows and expired keys go."""
    name, storage = _choose(nemesis, chance)
    await storage.outbox.cleanup(older_than=timedelta(seconds=1), batch_size=50, actor="chaos")
    await storage.idempotency.cleanup(batch_size=50)
    return name


async def requeue(nemesis: Nemesis, chance: random.Random) -> str | None:
    """An operator sends again what is DEAD, and what consumers gave up."""
    storages = nemesis.storages
    for storage in storages.both:
        await _bulk(nemesis, storage, Verb.REQUEUE)
    letters = await _letters(storages.two)
    bus: Any = bus_from_url(nemesis.ground.bus, **nemesis.ground.bus_options)
    async with asyncio.timeout(10), bus:
        for letter in letters:
            nemesis.operated += 1
            await bus.publish(revive(letter))
    return f"{len(letters)} letters"


async def _letters(storage: SqlAlchemyStorage) -> list[Any]:
    reader = storage.engine.execution_options(semel_read_only=True)
    async with storage.session_factory(bind=reader) as session:
        dead = select(OutboxRecord).where(
            OutboxRecord.topic.in_([f"{topic}.dead" for topic in TOPICS]),
            OutboxRecord.event_type == "Poison",
        )
        return [record.envelope() for record in await session.scalars(dead)]


async def replay(nemesis: Nemesis, chance: random.Random) -> str | None:
    """An operator sends again what was sent."""
    name, storage = _choose(nemesis, chance)
    await _bulk(nemesis, storage, Verb.REPLAY, limit=20)
    return name


async def _bulk(nemesis: Nemesis, storage: SqlAlchemyStorage, verb: Verb, **options: Any) -> None:
    before = 0
    async for progress in storage.outbox.bulk(verb, actor="chaos", **options):
        nemesis.operated += progress.changed - before
        before = progress.changed


DATABASE_FAULTS: dict[str, Fault] = {
    "connections terminated": terminated,
    "database killed": killed,
    "database read-only": read_only,
    "table locked": table_locked,
    "idle in transaction": idle_in_transaction,
    "cleanup": cleanup,
    "requeue": requeue,
    "replay": replay,
}
