"""Secrets and payloads appear in no metric, span, log record or stored error."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel
from sqlalchemy import insert, make_url, select

from semel import Hub, MessageEnvelope, RetryPolicy, bus_from_url
from semel.errors import PublishError
from semel.logs import JsonFormatter
from semel.observer import CombinedObserver
from semel.opentelemetry import OpenTelemetryObserver
from semel.prometheus import PrometheusObserver
from semel.protocols import UnitOfWork
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.consuming import prepare, stock
from tests.scenarios.relaying import add, config, eventually, projector, running
from tests.services import Database, service_url

SECRET = "CANARY-secret-7f3"
PAYLOAD = "CANARY-payload-7f3"
HEADER = "CANARY-header-7f3"
BODY = {"card": PAYLOAD}
METADATA = {"authorization": HEADER}

both = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


class Watch(logging.Handler):
    """Everything that leaves the process for people to read."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self._forms = (JsonFormatter(), logging.Formatter("%(message)s %(exc_text)s"))
        self.prometheus = PrometheusObserver(CollectorRegistry())
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        traces = OpenTelemetryObserver(tracer_provider=self.provider)
        self.observer = CombinedObserver(self.prometheus, traces)

    def emit(self, record: logging.LogRecord) -> None:
        # Below INFO only our own: drivers log parameters at DEBUG, which nobody switches on.
        if record.levelno >= logging.INFO or record.name.startswith("semel"):
            self.lines += [form.format(record) for form in self._forms]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def value(self, name: str, **labels: str) -> float:
        return self.prometheus.registry.get_sample_value(name, labels) or 0

    def all(self) -> str:
        spans = [span.to_json() for span in self.exporter.get_finished_spans()]
        return "\n".join([generate_latest(self.prometheus.registry).decode(), *spans, *self.lines])


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    root, ours = logging.getLogger(), logging.getLogger("semel")
    before = root.level, ours.level
    root.addHandler(watch)
    root.setLevel(logging.INFO)
    ours.setLevel(logging.DEBUG)
    yield watch
    root.removeHandler(watch)
    root.setLevel(before[0])
    ours.setLevel(before[1])
    watch.provider.shutdown()


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[SqlAlchemyStorage]:
    """On PostgreSQL the password of the database is the secret, too."""
    if database.name == "sqlite":
        async with SqlAlchemyStorage(database.url) as storage:
            await prepare(storage)
            yield storage
        return
    admin = make_url(database.url).set(drivername="postgresql")
    role = f"canary_{admin.database}"
    with closing(
        psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True)
    ) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
        connection.execute(f"GRANT ALL ON DATABASE {admin.database} TO {role}")
        connection.execute(f"GRANT ALL ON SCHEMA public TO {role}")
        own = make_url(database.url).set(username=role, password=SECRET)
        try:
            async with SqlAlchemyStorage(own.render_as_string(hide_password=False)) as storage:
                await prepare(storage)
                yield storage
        finally:
            connection.execute(f"DROP OWNED BY {role} CASCADE")
            connection.execute(f"DROP ROLE {role}")


@dataclass
class Stored:
    errors: str
    letters: str


async def stored(storage: SqlAlchemyStorage) -> Stored:
    """What the tables hold beside the messages, and the metadata of dead letters."""
    async with storage.session_factory() as session:
        outbox = (await session.scalars(select(OutboxRecord))).all()
        inbox = (await session.scalars(select(InboxRecord))).all()
    errors = [_without(row, "payload", "payload_bytes", "event_metadata") for row in outbox]
    errors += [_without(row, "payload") for row in inbox]
    letters = [row.event_metadata for row in outbox if row.topic.endswith(".dead")]
    return Stored(json.dumps(errors, default=str), json.dumps(letters))


def _without(row: OutboxRecord | InboxRecord, *columns: str) -> dict[str, Any]:
    names = set(row.__table__.columns.keys()) - set(columns)
    return {name: getattr(row, name) for name in names}


async def check(watch: Watch, storage: SqlAlchemyStorage) -> None:
    shown, found = watch.all(), await stored(storage)
    for canary in (SECRET, PAYLOAD, HEADER):
        assert canary not in shown, [line for line in shown.splitlines() if canary in line]
        assert canary not in found.errors
    # A dead letter is the message itself, with its headers; what is told about it is not.
    assert SECRET not in found.letters
    assert PAYLOAD not in found.letters


async def add_canary(storage: SqlAlchemyStorage, event_id: str, watch: Watch) -> None:
    storage.observer = watch.observer
    async with storage.unit_of_work() as uow:
        await uow.outbox.add("orders", BODY, event_id=event_id, metadata=METADATA, key=event_id)
        await uow.commit()


@both
@pytest.mark.parametrize(
    "broker",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("rabbitmq", "redis")],
)
async def test_a_broker_that_refuses_the_password(
    storage: SqlAlchemyStorage, watch: Watch, broker: str
) -> None:
    """A real server says no, again and again, until it is said aloud."""
    url = make_url(service_url(broker)).set(username="semel", password=SECRET)
    bus = bus_from_url(url.render_as_string(hide_password=False))
    await add_canary(storage, "e-1", watch)
    quick = {"breaker_alert_seconds": 0.2, "observer": watch.observer}
    try:
        async with running(projector(storage, bus, **quick)):  # type: ignore[arg-type]
            await eventually(
                lambda: watch.value("outbox_circuit_alerts_total", destination="the broker") == 1
            )
    finally:
        await bus.close()
    assert any("in trouble" in line for line in watch.lines)
    await check(watch, storage)


@both
async def test_rejected_events(storage: SqlAlchemyStorage, watch: Watch) -> None:
    """Brokers that quote addresses and credentials in their answers; FAILED, then DEAD."""
    texts = {
        "address": f"amqp://user:{SECRET}@host:5672/ refused it",
        "option": f"sasl.password={SECRET} is wrong",
        "header": f"Authorization: Bearer {SECRET}",
        "second line": f"refused\nmessage: {PAYLOAD} {HEADER} {SECRET}",
    }

    class Talkative(InMemoryMessageBus):
        async def publish_many(self, messages: list[MessageEnvelope]) -> list[PublishError | None]:
            return [self.answer(message) for message in messages]

        def answer(self, message: MessageEnvelope) -> PublishError:
            try:
                raise ConnectionError(texts[message.event_id])
            except ConnectionError as error:
                rejected = PublishError(texts[message.event_id], kind="transient")
                rejected.__cause__ = error
                return rejected

    for name in texts:
        await add_canary(storage, name, watch)
    bus = Talkative()
    relay = projector(storage, bus, observer=watch.observer, max_retry_attempts=2)
    async with running(relay):
        await eventually(lambda: watch.value("outbox_died_total", topic="orders") == len(texts))
    assert len(texts) == watch.value("outbox_retries_total", topic="orders")
    dead = [line for line in watch.records() if line.get("outcome") == "dead"]
    assert set(texts) == {line["event_id"] for line in dead}
    assert {("orders", "default", 2)} == {(d["topic"], d["tenant"], d["attempts"]) for d in dead}
    assert "refused it" in (await stored(storage)).errors
    await check(watch, storage)


class Card(BaseModel):
    """What a handler wants; the message has something else."""

    card: int


@both
async def test_failing_consumers(storage: SqlAlchemyStorage, watch: Watch) -> None:
    """Handlers that quote an address, break a constraint, or get what does not fit."""
    hub = Hub(
        "billing",
        storage=storage,
        bus=InMemoryMessageBus(),
        config=config(),
        observer=watch.observer,
        sample_seconds=0.05,
    )
    consumer = hub.consumer("orders", retry=RetryPolicy(max_attempts=2, base_seconds=0.01))

    @consumer.on("address")
    async def call(message: MessageEnvelope, uow: UnitOfWork) -> None:
        raise ConnectionError(f"https://user:{SECRET}@host/ does not answer")

    @consumer.on("constraint")
    async def violate(message: MessageEnvelope, uow: UnitOfWork) -> None:
        await uow.session.execute(insert(stock).values(id=1, left=1))

    @consumer.on("validation")
    async def charge(card: Card) -> None: ...

    storage.observer = watch.observer
    async with hub.running():
        async with hub.unit_of_work() as uow:
            for kind in ("address", "constraint", "validation", "unknown"):
                await uow.outbox.add("orders", BODY, event_type=kind, metadata=METADATA)
            await uow.commit()
        await eventually(lambda: parked(watch) == 4)
    found = await stored(storage)
    assert "does not answer" in found.errors
    told = [line for line in watch.records() if "outcome" in line]
    assert {"retry": 2, "dead": 3} == Counter(line["outcome"] for line in told)
    assert {("billing", "orders")} == {(line["consumer"], line["topic"]) for line in told}
    assert HEADER in found.letters
    await check(watch, storage)


def parked(watch: Watch) -> float:
    reasons = ("failed", "invalid", "unknown_type")
    return sum(
        watch.value("consumer_inbox_parked_total", consumer_name="billing", reason=reason)
        for reason in reasons
    )


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_database_that_goes_away(storage: SqlAlchemyStorage, watch: Watch) -> None:
    """Its connections are cut and its password is changed while a projector works."""
    bus = InMemoryMessageBus()
    await add_canary(storage, "before", watch)
    async with running(projector(storage, bus, observer=watch.observer)):
        await eventually(lambda: bus.published_ids() == ["before"])
        user = make_url(str(storage.engine.url)).username
        with closing(psycopg.connect(_admin(), autocommit=True)) as connection:
            connection.execute(f"ALTER ROLE {user} PASSWORD 'another'")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
                (user,),
            )
            await eventually(lambda: any("failed: " in line for line in watch.lines))
            connection.execute(f"ALTER ROLE {user} PASSWORD '{SECRET}'")
        await add(storage, "after")
        await eventually(lambda: "after" in bus.published_ids())
    await check(watch, storage)


def _admin() -> str:
    url = make_url(service_url("postgres")).set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def test_the_canary_would_be_found(watch: Watch) -> None:
    """A careless log line is noticed: the tests above can fail."""
    logging.getLogger("semel.test").info("the card is %s", PAYLOAD)
    assert PAYLOAD in watch.all()
