"""What an event costs, in counters that do not depend on the machine; times are for `make bench`.

PostgreSQL explains the very statements that the product sends: bytes of its log, rows that it
touches. `tests/stores/test_statement_counts.py` counts statements.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import asyncpg
import pytest
from sqlalchemy import event, text

from benchmarks.databases import TEXT, dsn, fill
from semel import ConsumerInbox, MessageEnvelope, SqlAlchemyOutbox
from semel.relay import Read
from semel.sqlalchemy.scratch import write_business_row
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database

# As many in each lane: PostgreSQL tells the average of each loop as a whole number.
EVENTS = 20 * 64
EVENLY = ("{key}", "n % 64")
LANES = [Read(partition, 0, EVENTS) for partition in range(64)]
RESET = "UPDATE outbox SET lane = partition_no, status = 'NEW', sent_at = NULL"


class Sent(NamedTuple):
    """A statement with its arguments, as asyncpg sent it."""

    sql: str
    arguments: tuple[Any, ...]


@pytest.fixture
async def server(postgres: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn(postgres.url))
    yield connection
    await connection.close()


@contextmanager
def recorded(storage: SqlAlchemyStorage) -> Iterator[list[Sent]]:
    """What is sent inside: through SQLAlchemy, or past it on connections checked out inside."""
    engine, sent, watched = storage.engine.sync_engine, [], []

    def note(record: Any) -> None:
        sent.append(Sent(record.query, tuple(record.args or ())))

    def execute(_connection: Any, _cursor: Any, sql: str, values: Any, *_: Any) -> None:
        sent.append(Sent(sql, tuple(values)))

    def checkout(adapted: Any, *_: Any) -> None:
        if adapted.driver_connection not in watched:
            adapted.driver_connection.add_query_logger(note)
            watched.append(adapted.driver_connection)

    event.listen(engine, "before_cursor_execute", execute)
    event.listen(engine, "checkout", checkout)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", execute)
        event.remove(engine, "checkout", checkout)
        for connection in watched:
            connection.remove_query_logger(note)


async def the_one(
    storage: SqlAlchemyStorage, work: Callable[[], Awaitable[Any]], *words: str
) -> Sent:
    """The statement with these words that *work* sends."""
    await storage.relay.close()  # kept connections were checked out before
    with recorded(storage) as sent:
        await work()
        await asyncio.sleep(0)  # asyncpg tells its loggers a moment later
    found = [item for item in sent if all(word in item.sql for word in words)]
    assert 1 == len(found), [item.sql for item in sent]
    return found[0]


async def explain(
    server: asyncpg.Connection, sent: Sent, *before: str
) -> tuple[Mapping[str, Any], float]:
    """The plan as it was executed, and its bytes in the log without images of whole pages.

    Those come after a checkpoint, whenever that is.
    """
    for _ in range(10):
        for statement in before:
            await server.execute(statement)
        explained = await server.fetchval(
            f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {sent.sql}", *sent.arguments
        )
        plan = json.loads(explained)[0]["Plan"]
        if not plan.get("WAL FPI"):
            return plan, plan.get("WAL Bytes", 0)
    raise AssertionError("there was a checkpoint each time")


def touched(plan: Mapping[str, Any], table: str) -> float:
    """How many rows of *table* a plan looked at, whether it used them or not."""
    counted = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(
        scan["Actual Loops"] * sum(scan.get(name, 0) for name in counted)
        for scan in scans(plan, table)
    )


def scans(plan: Mapping[str, Any], table: str) -> Iterator[Mapping[str, Any]]:
    """The parts of a plan that read *table*."""
    if plan.get("Relation Name") == table and "Scan" in plan["Node Type"]:
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part, table)


async def test_a_fetch_touches_each_event_once(
    storage: SqlAlchemyStorage, server: asyncpg.Connection
) -> None:
    await fill(storage, EVENTS, keys=EVENLY)
    sent = await the_one(storage, lambda: storage.relay.fetch(LANES), "SELECT", "content_type")
    plan, logged = await explain(server, sent)
    assert EVENTS == plan["Actual Rows"]
    assert EVENTS == touched(plan, "outbox")
    assert 0 == logged


async def test_a_fetch_does_not_look_at_what_was_sent(
    storage: SqlAlchemyStorage, server: asyncpg.Connection
) -> None:
    """Nor at what waits in other lanes."""
    await fill(storage, EVENTS, keys=EVENLY)
    await server.execute("UPDATE outbox SET status = 'SENT', lane = NULL WHERE sequence > 640")
    await server.execute("UPDATE outbox SET lane = lane + 64 WHERE sequence BETWEEN 65 AND 640")
    await server.execute("VACUUM ANALYZE outbox")
    sent = await the_one(storage, lambda: storage.relay.fetch(LANES), "SELECT", "content_type")
    plan, _ = await explain(server, sent)
    assert 64 == plan["Actual Rows"]
    assert 64 == touched(plan, "outbox")


@pytest.mark.parametrize("lanes", [1, 20])
async def test_a_fetch_uses_the_index_of_lanes_whatever_the_statistics_say(
    storage: SqlAlchemyStorage, server: asyncpg.Connection, lanes: int
) -> None:
    """With few lanes in them the primary key looked cheaper: the whole table, once per lane."""
    await fill(storage, 4000, keys=("{key}", f"n % {lanes}"))
    await server.execute("VACUUM ANALYZE outbox")
    sent = await the_one(storage, lambda: storage.relay.fetch(LANES), "SELECT", "content_type")
    plan, _ = await explain(server, sent)
    assert ["ix_outbox_lane"] == [scan.get("Index Name") for scan in scans(plan, "outbox")]


async def test_the_server_neither_compiles_a_fetch_nor_sorts_it_on_disk(
    storage: SqlAlchemyStorage,
) -> None:
    """With 150,000 rows it did: a fetch of 100 ms took a second more."""
    async with storage.relay._reader.use() as connection:
        assert "off" == await connection.scalar(text("SHOW jit"))
        assert "32MB" == await connection.scalar(text("SHOW work_mem"))


@pytest.mark.parametrize(("keep", "most_bytes"), [(True, 900), (False, 150)])
async def test_acknowledging_an_event(
    storage: SqlAlchemyStorage, server: asyncpg.Connection, keep: bool, most_bytes: int
) -> None:
    """It touches each row once. Kept, a row is written anew (about 620 bytes) with two entries of
    indexes; deleted, it is marked only.
    """
    await fill(storage, EVENTS, keys=EVENLY)
    numbers = [row[0] for row in await server.fetch("SELECT sequence FROM outbox")]
    sent = await the_one(
        storage, lambda: storage.relay.acknowledge(numbers, keep=keep), "outbox", "lane IS NOT NULL"
    )
    if keep:
        plan, logged = await explain(server, sent, RESET, "VACUUM ANALYZE outbox")
    else:
        await server.execute("VACUUM outbox")
        await fill(storage, EVENTS, keys=EVENLY)
        again = [row[0] for row in await server.fetch("SELECT sequence FROM outbox")]
        arguments = tuple(again if item == numbers else item for item in sent.arguments)
        plan, logged = await explain(server, Sent(sent.sql, arguments))
    assert EVENTS == touched(plan, "outbox")
    assert 0 < logged / EVENTS <= most_bytes


@pytest.mark.parametrize("events", [1, 10, 100])
async def test_writing_events(
    storage: SqlAlchemyStorage, server: asyncpg.Connection, events: int
) -> None:
    """One round trip, and per event its row of 620 bytes and three entries of indexes."""

    async def commit() -> None:
        async with storage.session_factory() as session:
            outbox = SqlAlchemyOutbox(session)
            for number in range(events):
                await outbox.add("orders", {"text": TEXT}, key=f"k{number % 10}")
            await session.commit()

    await commit()
    sent = await the_one(storage, commit, "INSERT INTO outbox")
    # Pages are there: what is counted is what each event adds.
    plan, logged = await explain(server, sent, "DELETE FROM outbox")
    assert "ModifyTable" == plan["Node Type"]
    assert 500 < logged / events <= 1400


async def test_an_inbox_message_costs_two_statements_beside_its_handler(
    storage: SqlAlchemyStorage,
) -> None:
    """The gate before it and the completion after it; a batch has as many."""
    inbox = ConsumerInbox(storage, "bench")

    async def handler(payload: Any, uow: Any) -> None:
        await write_business_row(uow.session, "x")

    async def process(number: int) -> list[Sent]:
        with recorded(storage) as sent:
            await inbox.process(f"m-{number}", "orders", "OrderPlaced", {"n": number}, handler)
            await asyncio.sleep(0)
        return [item for item in sent if "inbox" in item.sql]

    await process(1)
    assert 2 == len(await process(2))


async def test_events_of_a_handler_are_written_with_one_statement(
    storage: SqlAlchemyStorage, server: asyncpg.Connection
) -> None:
    """Whether an earlier run has emitted them is looked up there, by the index of their ids."""
    cause = MessageEnvelope(topic="orders", payload=1)

    async def emit() -> None:
        async with storage.unit_of_work(cause=cause) as uow:
            await uow.session.execute(text("DELETE FROM outbox WHERE topic = 'invoices'"))
            for number in range(10):
                await uow.outbox.add("invoices", {"text": TEXT}, key=f"k{number}")
            await uow.commit()

    await fill(storage, EVENTS, keys=EVENLY)
    await emit()
    sent = await the_one(storage, emit, "INSERT INTO outbox")
    plan, logged = await explain(server, sent, "DELETE FROM outbox WHERE topic = 'invoices'")
    assert 0 == touched(plan, "outbox")
    assert 0 < logged
    plan, logged = await explain(server, sent)
    assert 1 == touched(plan, "outbox")
    # Not a single event: what the server logs here at times is that it tidied up a page.
    assert logged < len(TEXT)


@pytest.mark.parametrize(
    ("statement", "most_ours", "most_others"),
    [
        ("import semel", 1, 0),
        ("from semel import OutboxProjector, SqlAlchemyStorage", 90, 55),
        ("from semel import *", 145, 60),
    ],
)
def test_an_import_brings_no_optional_library_and_few_modules(
    statement: str, most_ours: int, most_others: int
) -> None:
    """Modules are counted, for their time depends on the machine; SQLAlchemy's own are not ours."""
    program = (
        "import sqlalchemy.ext.asyncio, sqlalchemy.orm, sys; before = set(sys.modules); "
        f"exec({statement!r}); print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found = done.stdout.split()
    tops = {name.partition(".")[0] for name in found}
    assert not tops & {
        *("asyncpg", "psycopg", "asyncmy", "aiosqlite", "alembic", "confluent_kafka", "aio_pika"),
        *("nats", "redis", "pulsar", "fastapi", "starlette", "typer", "rich", "pydantic"),
        *("prometheus_client", "opentelemetry", "msgspec", "orjson", "fastavro", "google"),
    }
    ours = [name for name in found if name.startswith("semel")]
    others = [name for name in found if not name.startswith("semel")]
    assert most_ours >= len(ours), ours
    assert most_others >= len(others), others
