"""Per key the numbers rise in the order of the commits (promise 2), on every database."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from semel.sqlalchemy.dialects.mysql import MySql
from semel.sqlalchemy.dialects.postgresql import PostgreSql
from semel.sqlalchemy.layout import SLOTS
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.rows import Plan, slot_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.stores import shop

LEVELS = [
    ("postgres", "READ COMMITTED"),
    ("postgres", "REPEATABLE READ"),
    ("postgres", "SERIALIZABLE"),
    ("mariadb", "READ COMMITTED"),
    ("mariadb", "REPEATABLE READ"),
]
BOTH = pytest.mark.parametrize("kept", ["postgres", "mariadb"], indirect=True)
SERVERS = pytest.mark.parametrize(
    "kept", ["postgres", "postgres-psycopg", "mariadb"], indirect=True
)
POSTGRES = pytest.mark.parametrize("kept", ["postgres"], indirect=True)
WRITERS = 8
COMMITS = 25


async def write(storage: SqlAlchemyStorage, *keys: str | None, name: str = "Written") -> None:
    """Commit one event per key."""
    async with storage.session_factory() as session:
        for key in keys:
            await SqlAlchemyOutbox(session).add("t", 1, key=key, event_type=name)
        await session.commit()


async def late_rows(storage: SqlAlchemyStorage, level: str, *, keys: int = 3) -> tuple[int, int]:
    """Let writers compete; return how many rows there are, and how many became visible late.

    A watcher reads the table all the time. A row is late if the watcher had seen a higher number
    of its key before: a relay would have published the two in the wrong order.
    """
    engine = storage.engine.execution_options(isolation_level=level)
    highest: dict[str, int] = {}
    seen: set[int] = set()
    late = 0

    async def writer(number: int) -> None:
        source = random.Random(number)
        for _ in range(COMMITS):
            async with AsyncSession(engine) as session:
                outbox = SqlAlchemyOutbox(session)
                for key in source.sample(range(keys), source.randint(1, min(2, keys))):
                    await outbox.add("t", 1, key=f"key-{key}")
                await session.commit()

    async def look() -> None:
        nonlocal late
        async with storage.engine.connect() as connection:
            result = await connection.execute(text("SELECT sequence, order_key FROM outbox"))
            fresh = sorted(row for row in result if row.sequence not in seen)
        # What becomes visible together is compared with what was visible before.
        before = dict(highest)
        for sequence, key in fresh:
            seen.add(sequence)
            late += sequence < before.get(key, 0)
            highest[key] = max(sequence, highest.get(key, 0))

    async def watch() -> None:
        while not done.is_set():
            await look()

    done = asyncio.Event()
    async with asyncio.timeout(60):
        watcher = asyncio.create_task(watch())
        await asyncio.gather(*(writer(number) for number in range(WRITERS)))
        done.set()
        await watcher
        await look()
    return len(seen), late


@pytest.mark.parametrize(("kept", "level"), LEVELS, indirect=["kept"])
async def test_fm_p08_no_row_of_a_key_becomes_visible_late(
    storage: SqlAlchemyStorage, level: str
) -> None:
    """Eight writers on three keys, at every isolation level."""
    count, late = await late_rows(storage, level)
    assert WRITERS * COMMITS < count
    assert 0 == late


@BOTH
async def test_fm_p08_without_the_locks_rows_are_late(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control run: the test above can fail."""
    without_locks(monkeypatch)
    for _ in range(50):
        _, late = await late_rows(storage, "READ COMMITTED", keys=1)
        if late:
            return
        await shop.empty(storage)
    pytest.fail("no row was late in fifty runs without locks: the test proves nothing")


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writers take no slot."""
    monkeypatch.setattr(PostgreSql, "_locks", lambda *_: ([], []))
    lock = MySql._lock_slots

    def pretend(self: MySql, connection: object, plan: Plan, unless: object) -> object:
        # A slot of its own: the statement wants one, but it excludes nobody.
        own = Plan(plan.rows, plan.partitions, plan.lanes, [random.randrange(SLOTS)], False)
        return lock(self, connection, own, unless)  # type: ignore[arg-type]

    monkeypatch.setattr(MySql, "_lock_slots", pretend)


@SERVERS
async def test_the_second_to_insert_waits_for_the_first_to_commit(
    storage: SqlAlchemyStorage,
) -> None:
    """Two transactions on one key: the one that has its number commits first."""
    async with storage.engine.connect() as watch:
        async with shop.stalled_commit(storage, key="k"):
            second = asyncio.create_task(write(storage, "k", name="Second"))
            await shop.until(lambda: shop.someone_waits(watch))
            assert [] == await shop.types(storage)
        async with asyncio.timeout(shop.PATIENCE):
            await second
    assert ["stalled", "Second"] == await shop.types(storage)


@pytest.mark.parametrize("kept", ["postgres", "postgres-psycopg", "mariadb"], indirect=True)
async def test_the_first_to_add_may_commit_last(storage: SqlAlchemyStorage) -> None:
    """Numbers are given at the end: adding early means nothing."""
    async with storage.session_factory() as early:
        await SqlAlchemyOutbox(early).add("t", 1, key="k", event_type="AddedFirst")
        await write(storage, "k", name="CommittedFirst")
        await early.commit()
    assert ["CommittedFirst", "AddedFirst"] == await shop.types(storage)


@SERVERS
async def test_fm_p09_a_long_transaction_delays_nobody(storage: SqlAlchemyStorage) -> None:
    """Not even one with an event of the same key, as long as it is not about to commit."""
    async with storage.session_factory() as long:
        long.add(shop.Order(id="1"))
        await long.flush()
        await SqlAlchemyOutbox(long).add("t", 1, key="k", event_type="Long")
        async with asyncio.timeout(5):
            await write(storage, "k", None, name="Short")
        assert ["Short", "Short"] == await shop.types(storage)
        await long.commit()
    assert ["Short", "Short", "Long"] == await shop.types(storage)


@SERVERS
async def test_a_commit_that_stalls_delays_its_own_slot_only(storage: SqlAlchemyStorage) -> None:
    """Other keys and keyless events go on."""
    other = next(
        f"k-{number}"
        for number in range(SLOTS)
        if slot_of("default", f"k-{number}", SLOTS) != slot_of("default", "k", SLOTS)
    )
    async with shop.stalled_commit(storage, key="k"):
        async with asyncio.timeout(5):
            for _ in range(5):
                await write(storage, other, name="Other")
        assert ["Other"] * 5 == await shop.types(storage)


@SERVERS
async def test_unordered_topics_take_no_exclusive_slot(storage: SqlAlchemyStorage) -> None:
    """Two writers of one key can be about to commit at once."""
    unordered = SqlAlchemyStorage(storage.engine, unordered_topics=["t"])
    async with (
        unordered,
        shop.stalling(storage.engine, commits=2) as stall,
        asyncio.timeout(shop.PATIENCE),
    ):
        tasks = [asyncio.create_task(_write_by(unordered)) for _ in range(2)]
        await stall.all_reached.wait()
        stall.go_on.set()
        await asyncio.gather(*tasks)
    assert ["k", "k"] == [row.order_key for row in await shop.rows(storage)]


async def _write_by(storage: SqlAlchemyStorage) -> None:
    async with storage.unit_of_work() as uow:
        await uow.outbox.add("t", 1, key="k")
        await uow.commit()


def many_keys(count: int) -> Sequence[str]:
    """Return keys of that many different slots."""
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < count:
        keys.setdefault(slot_of("default", f"bulk-{number}", SLOTS), f"bulk-{number}")
        number += 1
    return list(keys.values())


@SERVERS
@pytest.mark.parametrize("count", [32, 33, 300])
async def test_finding_07_a_bulk_has_many_slots(storage: SqlAlchemyStorage, count: int) -> None:
    """Beyond 32 there is one lock for all of them, where the server's memory is scarce."""
    keys = many_keys(count)
    await write(storage, *keys)
    assert keys == [row.order_key for row in await shop.rows(storage)]


@SERVERS
async def test_finding_07_bulks_and_others_at_the_same_time(storage: SqlAlchemyStorage) -> None:
    """All of them commit, and per key in the order of their commits."""
    keys = many_keys(40)

    async def trickle(key: str) -> None:
        for _ in range(10):
            await write(storage, key, name="Trickle")

    async with asyncio.timeout(30):
        await asyncio.gather(
            *(write(storage, *keys, name="Bulk") for _ in range(3)),
            *(trickle(key) for key in keys[:4]),
        )
    names = await shop.types(storage)
    assert (120, 40) == (names.count("Bulk"), names.count("Trickle"))


@SERVERS
async def test_finding_07_a_bulk_waits_for_a_slot_and_stops_nobody(
    storage: SqlAlchemyStorage,
) -> None:
    """While one writer stalls and a bulk waits for it, the others hardly notice."""
    keys = many_keys(40)
    free = many_keys(41)[-1]
    waits: list[float] = []
    async with shop.stalled_commit(storage, key=keys[0]):
        bulk = asyncio.create_task(write(storage, *keys, name="Bulk"))
        give_up = time.monotonic() + 1.5
        async with asyncio.timeout(shop.PATIENCE):
            while time.monotonic() < give_up:
                started = time.monotonic()
                await write(storage, free, name="Free")
                waits.append(time.monotonic() - started)
        assert not bulk.done()
    async with asyncio.timeout(shop.PATIENCE):
        await bulk
    assert 40 == (await shop.types(storage)).count("Bulk")
    assert 10 < len(waits)
    assert 3.0 > max(waits)


@POSTGRES
async def test_finding_07_a_bulk_gives_up_in_the_end(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the database's own lock time-out, and without harm to the one it waited for."""
    monkeypatch.setattr("semel.sqlalchemy.dialects.postgresql.LOCK_SECONDS", 0.0)
    keys = many_keys(40)
    async with shop.stalled_commit(storage, key=keys[0]):
        with pytest.raises(Exception, match="lock timeout") as caught:
            await write(storage, *keys)
        assert storage.is_transient(caught.value)
    assert ["stalled"] == await shop.types(storage)


@POSTGRES
async def test_finding_19_thousands_of_events_in_one_statement(storage: SqlAlchemyStorage) -> None:
    """A statement has at most 32,767 arguments; arrays have no such limit, and keep order."""
    await write(storage, *["k"] * 800, *[None] * 800)
    rows = await shop.rows(storage)
    assert ["k"] * 800 + [None] * 800 == [row.order_key for row in rows]
    assert 1600 == len({row.id for row in rows})


@pytest.mark.parametrize("kept", ["sqlite", "mariadb"], indirect=True)
async def test_fm_p07_thousands_of_events_elsewhere(storage: SqlAlchemyStorage) -> None:
    """In bounded statements of many rows, in order."""
    async with storage.session_factory() as session:
        outbox = SqlAlchemyOutbox(session)
        for number in range(3000):
            await outbox.add("t", {"n": number, "text": "x" * 500}, key="k")
        await session.commit()
    assert list(range(3000)) == [row.payload["n"] for row in await shop.rows(storage)]


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
async def test_finding_24_readers_that_write_wait_for_their_turn(
    storage: SqlAlchemyStorage,
) -> None:
    """SQLite would fail such transactions at once, whatever the busy time-out."""

    async def read_then_write(number: int) -> None:
        async with storage.session_factory() as session:
            await session.get(shop.Order, "none")
            await SqlAlchemyOutbox(session).add("t", number, key="k")
            await session.commit()

    async with asyncio.timeout(shop.PATIENCE):
        await asyncio.gather(*(read_then_write(number) for number in range(10)))
    rows = await shop.rows(storage)
    assert set(range(10)) == {row.payload for row in rows}
