"""What is shown to whom: objects in logs, probes, metrics; and deeds that leave a trace."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from semel import Hub, InMemoryMessageBus, SqlAlchemyStorage, bus_from_url
from semel.asgi.health import health_app
from semel.dashboard import ADMIN, Account, BasicAuth, TokenAuth, hash_password, hash_token
from semel.metrics import ALL
from semel.prometheus import PrometheusObserver, metrics_app
from semel.sqlalchemy import bus_tables  # noqa: F401  its tables are looked at, too
from semel.sqlalchemy.tables import AuditRecord, metadata
from semel.transports.kafka import KafkaMessageBus
from tests.dashboard.rows import dead, handled
from tests.services import Database

CANARY = "CANARY-7f3"
SASL = {"sasl.username": "user", "sasl.password": CANARY, "sasl.mechanism": "PLAIN"}
SERVERS: tuple[Any, ...] = (
    {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", **SASL},
    f"amqp://user:{CANARY}@127.0.0.1:1/",
    f"nats://user:{CANARY}@127.0.0.1:1",
    f"redis://user:{CANARY}@127.0.0.1:1/0",
)


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        yield storage


sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
each = pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)


def bus_at(server: Any) -> Any:
    return bus_from_url(server) if isinstance(server, str) else KafkaMessageBus(server)


async def test_sec12_objects_can_be_shown() -> None:
    """Whatever is put into a log line or an error by its repr or str tells no password."""
    storage = SqlAlchemyStorage(f"postgresql+asyncpg://user:{CANARY}@127.0.0.1:1/shop")
    buses = [bus_at(server) for server in SERVERS]
    hubs = [Hub("shop", storage=storage, bus=bus) for bus in buses]
    person = Account(name="ann", secret_hash=hash_password(f"{CANARY} long"), actions=ADMIN)
    robot = Account(name="robot", secret_hash=hash_token(CANARY * 3), actions=ADMIN)
    shown = [storage, storage.outbox, storage.inbox, storage.relay, *buses, *hubs, person, robot]
    shown += [BasicAuth([person]), TokenAuth([robot])]

    for each in shown:
        for form in (repr(each), str(each), f"{each}", f"{[each]}"):
            assert CANARY not in form, type(each)


@pytest.mark.parametrize("server", SERVERS, ids=["Kafka", "RabbitMQ", "NATS", "Redis"])
async def test_sec12_a_server_that_is_not_there(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bus = bus_at(server)
    with pytest.raises(Exception) as caught:
        await bus.ping()
    await bus.close()

    assert CANARY not in f"{caught.value!r}{caught.value}{caplog.text}"


@sqlite_only
async def test_sec19_strangers_learn_the_status_alone(storage: SqlAlchemyStorage) -> None:
    await storage.engine.dispose()
    hub = Hub(f"shop-{CANARY}", storage=storage, bus=InMemoryMessageBus())
    transport = httpx2.ASGITransport(app=health_app(hub, cache_seconds=0))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/livez", "/readyz", "/nope"):
            answer = await client.get(path)
            assert CANARY not in answer.text
            assert not {"server", "x-powered-by"} & set(answer.headers)
            if path != "/nope":
                assert ["status"] == list(answer.json())


def test_sec19_no_label_names_a_tenant_an_id_or_a_key() -> None:
    labels = {label for metric in ALL for label in metric.labels}
    told = {"tenant", "tenant_id", "event_id", "message_id", "key", "order_key", "user", "id"}

    assert labels
    assert not labels & told


async def test_sec19_metrics_may_ask_for_a_token() -> None:
    app = metrics_app(PrometheusObserver(CollectorRegistry()), token=CANARY)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        refused = await client.get("/metrics")
        wrong = await client.get("/metrics", headers={"authorization": f"Bearer {CANARY}x"})
        allowed = await client.get("/metrics", headers={"authorization": f"Bearer {CANARY}"})

    assert (401, 401, 200) == (refused.status_code, wrong.status_code, allowed.status_code)
    assert CANARY not in refused.text + wrong.text + allowed.text


def actions(storage: SqlAlchemyStorage) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What an operator can do to rows, and to which."""
    edit = storage.outbox.edit_and_requeue_as_new
    return {
        "requeued": lambda: storage.outbox.requeue(["requeued"], actor="ann"),
        "released": lambda: storage.outbox.release(["released"], actor="ann"),
        "dropped": lambda: storage.outbox.drop(["dropped"], actor="ann"),
        "edited": lambda: edit("edited", {"b": 2}, actor="ann"),
        "paused": lambda: storage.outbox.pause(topic="orders", actor="ann"),
        "forgotten": lambda: storage.inbox.forget("forgotten", consumer_name="shop", actor="ann"),
    }


@each
async def test_sec18_a_deed_that_cannot_be_written_down_is_not_done(
    storage: SqlAlchemyStorage,
) -> None:
    """The row in the audit is part of the same transaction: without it, nothing changes."""
    deeds = actions(storage)
    for name in deeds:
        await dead(storage, name)
        await handled(storage, name, tenant_id="default")
    before = await picture(storage)
    async with storage.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE audit RENAME TO elsewhere"))
    for act in deeds.values():
        with pytest.raises(DBAPIError):
            await act()
    async with storage.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE elsewhere RENAME TO audit"))
    assert before == await picture(storage)

    for act in deeds.values():
        before = await picture(storage)
        await act()
        assert before != await picture(storage)
    async with storage.session_factory() as session:
        rows = (await session.scalars(select(AuditRecord))).all()
    assert ["ann"] * len(deeds) == [row.actor for row in rows]


async def picture(storage: SqlAlchemyStorage) -> list[Any]:
    return [
        [(row.id, row.status, row.lane) for row in await storage.outbox.search()],
        [row.message_id for row in await storage.inbox.search()],
        [pause.topic for pause in await storage.outbox.pauses()],
    ]


def test_sec14_what_is_unique_is_unique_within_a_tenant() -> None:
    """Keys that messages and requests bring; numbers and ids that are made here are no secrets."""
    for name in ("inbox", "idempotency"):
        assert "tenant_id" in metadata.tables[name].primary_key.columns
    known = {"outbox": {("id",)}}  # UUIDs unless the producer says otherwise
    for table in metadata.tables.values():
        unique = {tuple(c.name for c in index.columns) for index in table.indexes if index.unique}
        unique |= {(column.name,) for column in table.columns if column.unique}
        assert known.get(table.name, set()) == unique, table.name
