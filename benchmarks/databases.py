"""Fresh databases with semel's tables, and backlogs that the database makes itself."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, String, Table, make_url, text

from benchmarks.runner import Bench
from semel import SqlAlchemyStorage
from semel.sqlalchemy.layout import DEAD_BLOCKING
from tests.services import BACKENDS, fresh_database
from tests.stores.bulk import fill_outbox

#: What a business transaction writes.
business = Table(
    "business",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("text", String(500)),
)
TOPIC = "orders"
TEXT = "x" * 480
PAYLOAD = f'{{"text": "{TEXT}"}}'
MANY_KEYS = ("{key}", "n % 997 % 64")
ONE_KEY = ("'hot'", "7")


@contextmanager
def database(bench: Bench, backend: str = "postgres") -> Iterator[str]:
    """The SQLAlchemy URL of an empty database, which is gone afterwards."""
    service = BACKENDS[backend].service
    if service is not None:
        bench.server(service)
    with (
        tempfile.TemporaryDirectory() as folder,
        fresh_database(backend, Path(folder)) as fresh,
    ):
        yield fresh.url


@asynccontextmanager
async def storage(
    bench: Bench, backend: str = "postgres", **options: object
) -> AsyncIterator[SqlAlchemyStorage]:
    """A storage on a fresh database with the tables."""
    if backend != "sqlite":
        options = {"pool_size": 20, **options}
    with database(bench, backend) as url:
        async with SqlAlchemyStorage(url, **options) as made:
            await made.initialize()
            async with made.engine.begin() as connection:
                await connection.run_sync(business.create)
            yield made


def dsn(url: str) -> str:
    """The address as a raw driver takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


async def fill(
    storage: SqlAlchemyStorage,
    events: int,
    *,
    keys: tuple[str, str] = MANY_KEYS,
    name: str = "id-",
    topic: str = TOPIC,
) -> None:
    """Add *events* unsent events; ids begin with *name*.

    *keys* are two expressions of SQL, where n is the number of the event: key and partition.
    """
    await fill_outbox(storage, events, sql=_insert(name, *keys, topic=topic))


async def block(storage: SqlAlchemyStorage, key: str, partition: str) -> None:
    """Add a DEAD event that blocks a key."""
    sql = _insert("dead-", key, partition, lane=f"{partition} + {DEAD_BLOCKING}", status="DEAD")
    await fill_outbox(storage, 1, sql=sql)


def _insert(
    name: str,
    key: str,
    partition: str,
    *,
    lane: str | None = None,
    status: str = "NEW",
    topic: str = TOPIC,
) -> str:
    """A template for `fill_outbox`: n is the number of the row."""
    payload = PAYLOAD.replace("{", "{{").replace("}", "}}")
    return f"""
    INSERT INTO outbox (id, tenant_id, topic, event_type, order_key, occurred_at, payload,
                        content_type, event_metadata, created_at, partition_no, lane, status)
    SELECT REPLACE({{id}}, 'id-', '{name}'), 'default', '{topic}', 'OrderPlaced', {key}, {{at}},
           '{payload}', 'application/json', '{{{{}}}}', {{at}}, {partition}, {lane or partition},
           '{status}'
    FROM ({{numbers}}) AS numbers
    """


async def empty(storage: SqlAlchemyStorage) -> None:
    """Delete all events."""
    verb = "DELETE FROM" if storage.engine.dialect.name == "sqlite" else "TRUNCATE TABLE"
    async with storage.engine.begin() as connection:
        await connection.execute(text(f"{verb} outbox"))


async def settle(storage: SqlAlchemyStorage) -> None:
    """Let the server finish what it would otherwise do during the measurement."""
    statements = {"postgresql": ("VACUUM ANALYZE outbox", "CHECKPOINT")}
    engine = storage.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        for statement in statements.get(storage.engine.dialect.name, ()):
            await connection.execute(text(statement))


async def refill(storage: SqlAlchemyStorage, events: int, *, topic: str = TOPIC) -> None:
    """A fresh backlog of many keys."""
    await empty(storage)
    await fill(storage, events, topic=topic)
    await settle(storage)
