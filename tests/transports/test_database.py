"""The database bus: the contract of all buses on every database, and what only it promises."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy.exc import DataError, OperationalError

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError
from semel.sqlalchemy.bus import CommitLostError, NewMessage
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import ids, message
from semel.transports import bus_from_url
from semel.transports.database import ERRORS, DatabaseMessageBus
from tests.services import BACKENDS, Database, fresh_database
from tests.transports.database_bus import backends, count, read, statements

PAGE = Path(__file__).parents[2] / "docs/transports/database.md"


@pytest.fixture(scope="module", params=backends(*BACKENDS))
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """One database per backend for all tests here: each has a topic of its own."""
    with fresh_database(request.param, tmp_path_factory.mktemp("bus")) as fresh:
        yield fresh


each = pytest.mark.parametrize("shared", backends("sqlite", "postgres", "mariadb"), indirect=True)
sqlite = pytest.mark.parametrize("shared", backends("sqlite"), indirect=True)


@pytest.fixture
async def storage(shared: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(shared.url) as storage:
        await storage.initialize()
        yield storage


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex}"


class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True

    @pytest.fixture
    async def bus(self, storage: SqlAlchemyStorage) -> AsyncIterator[DatabaseMessageBus]:
        async with DatabaseMessageBus(storage, lease_seconds=3) as bus:
            yield bus

    async def break_key(self, bus, topic: str, key: str) -> MessageEnvelope:
        return MessageEnvelope(topic=topic, key=key, body=bytes(5 * 1024 * 1024))


# Publishing


@each
async def test_a_position_that_is_not_visible_yet_is_not_passed(storage, topic):
    """Of two publishers into one log the second waits for the first: no group can miss one.

    Without the lock the later position would be committed, read and passed first.
    """
    bus = DatabaseMessageBus(storage, partitions=1)
    async with bus, await read(bus, topic) as reader:
        (log,) = await bus._logs(topic)
        async with storage.engine.begin() as connection:
            early = NewMessage(log, None, '{"message_id": "early"}', b"{}")
            await connection.run_sync(bus._opened._append, [early])
            late = asyncio.create_task(bus.publish(message(topic, event_id="late")))
            assert await reader.silent(0.3)
            assert not late.done()
        await late
        assert ["early", "late"] == ids(await reader.messages(2))


@each
async def test_publishers_of_many_logs_do_not_deadlock(storage, topic):
    """Batches that meet in the same logs in any order all come through."""
    async with DatabaseMessageBus(storage, partitions=4) as bus:
        batches = [
            [message(topic, key=f"k{(n * step) % 7}") for n in range(40)] for step in range(1, 7)
        ]
        results = await asyncio.gather(*map(bus.publish_many, batches))
        assert not any(error for result in results for error in result)
        assert 240 == await count(storage, topic)


@each
async def test_statements_of_a_batch_are_constant(storage, topic):
    """Publishing takes three statements for 10 or 1,000 messages in all logs of a topic."""
    async with DatabaseMessageBus(storage) as bus:
        await bus.publish(message(topic))
        for size in (10, 1000):
            with statements(storage) as seen:
                await bus.publish_many([message(topic, key=f"k{n}") for n in range(size)])
            assert {
                "SELECT bus_partition": 1,
                "INSERT bus_message": 1,
                "UPDATE bus_partition": 1,
            } == {name: number for name, number in seen.items() if "_group" not in name}


@each
async def test_statements_of_a_consumer_follow_the_fetches(storage, topic):
    """A fetch is one SELECT and stores all positions with one UPDATE, not one per message."""
    async with DatabaseMessageBus(storage, commit_seconds=60) as bus:
        await bus.publish_many([message(topic, key=f"k{n % 50}") for n in range(1000)])
        with statements(storage) as seen:
            async with await read(bus, topic, prefetch=100) as reader:
                await reader.messages(1000)
        fetches = seen["SELECT bus_message"]
        assert 5 <= fetches <= 25
        # The heartbeat and the release are UPDATEs too.
        assert seen["UPDATE bus_group"] <= fetches + 6


async def refuse(bus: DatabaseMessageBus, monkeypatch, *errors: Exception | None, bad: bytes = b""):
    """Let the store raise *errors* one after the other, or DataError for a body with *bad*."""
    store, queue = bus._opened, list(errors)
    append = store.append

    async def failing(rows):
        if queue and (error := queue.pop(0)) is not None:
            raise error
        if bad and any(bad in row.body for row in rows):
            raise DataError("INSERT", None, ValueError("too long"))
        await append(rows)

    monkeypatch.setattr(store, "append", failing)


def locked() -> OperationalError:
    cause = Exception("database is locked")
    cause.sqlite_errorcode = 5
    return OperationalError("INSERT", None, cause)


@sqlite
async def test_the_database_refuses_one_message(storage, topic, monkeypatch):
    """A row that the database refuses is permanent, with what follows of its key, alone."""
    async with DatabaseMessageBus(storage) as bus:
        await refuse(bus, monkeypatch, bad=b"poison")
        sent = [
            message(topic, key="a"),
            message(topic, key="b", payload="poison"),
            message(topic, key="b"),
            message(topic, key="c"),
        ]
        results = list(await bus.publish_many(sent))
        assert [None, "permanent", "permanent", None] == [r and r.kind for r in results]
        assert results[1] is results[2]
        assert 2 == await count(storage, topic)


@sqlite
async def test_a_busy_database_is_tried_again(storage, topic, monkeypatch):
    """A deadlock or lock time-out is not seen by the caller, unless it stays."""
    async with DatabaseMessageBus(storage) as bus:
        await refuse(bus, monkeypatch, locked(), locked())
        assert [None] == list(await bus.publish_many([message(topic)]))
        await refuse(bus, monkeypatch, locked(), locked(), locked())
        assert ["destination"] == [r.kind for r in await bus.publish_many([message(topic)])]


@sqlite
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CommitLostError("?"), "unknown"),
        (OperationalError("INSERT", None, Exception("no such table: bus_message")), "destination"),
        (OperationalError("INSERT", None, Exception("readonly database")), "destination"),
        (RuntimeError("surprise"), "destination"),
    ],
)
async def test_trouble_stops_the_batch(storage, topic, monkeypatch, error, kind):
    """Trouble that is not a message's own hits all that were not confirmed, and no others."""
    async with DatabaseMessageBus(storage) as bus:
        monkeypatch.setattr("semel.transports.database._BATCH_BYTES", 1000)
        await refuse(bus, monkeypatch, None, error)
        results = list(await bus.publish_many([message(topic, payload="x" * 400)] * 6))
        confirmed = sum(result is None for result in results)
        assert 0 < confirmed < 6
        assert [None] * confirmed + [kind] * (6 - confirmed) == [r and r.kind for r in results]
        assert confirmed == await count(storage, topic)


def test_the_page_shows_the_errors_as_they_are():
    """The table of errors in the documentation is the one in the code."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
    assert dict(ERRORS) == dict(rows)


# Set-up


@sqlite
async def test_bus_from_url(shared, storage, topic):
    """`database://` takes the storage, `database+...` makes one of its own."""
    given = bus_from_url("database://", storage=storage, partitions=2)
    made = bus_from_url(f"database+{shared.url}")
    assert isinstance(given, DatabaseMessageBus)
    assert isinstance(made, DatabaseMessageBus)
    assert storage is given.storage
    async with given, made:
        await given.publish(message(topic))
        async with await read(made, topic) as reader:
            await reader.messages(1)


def test_database_url_without_a_storage():
    """`database://` alone cannot know the database."""
    for url in ("database://", "database://host"):
        with pytest.raises(ConfigurationError, match=r"storage=.*database\+postgresql"):
            bus_from_url(url)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 257}, "partitions"),
        ({"lease_seconds": 0.5}, "lease_seconds"),
        ({"poll_seconds": 0}, "poll_seconds"),
        ({"commit_seconds": -1}, "commit_seconds"),
        ({"max_message_bytes": 0}, "max_message_bytes"),
        ({"retention": timedelta(days=20)}, "group_expiry"),
    ],
)
def test_bad_options(tmp_path, options, text):
    """Wrong settings are refused when the bus is made."""
    with pytest.raises(ConfigurationError, match=text):
        DatabaseMessageBus(f"sqlite+aiosqlite:///{tmp_path}/x.db", **options)


async def test_tables_are_missing(tmp_path):
    """A database without the tables is refused at the start, with the command that helps."""
    bus = DatabaseMessageBus(f"sqlite+aiosqlite:///{tmp_path}/empty.db")
    with pytest.raises(BusError, match="semel db create"):
        await bus.start()
    await bus.storage.close()
