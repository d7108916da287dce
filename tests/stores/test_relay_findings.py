"""Attacks on the relay's store that an earlier design did not survive."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import create_async_engine

from semel.relay import Failure, Read
from semel.sqlalchemy.layout import PARTITIONS as COUNT, SLOTS
from semel.sqlalchemy.leases import relay_engine
from semel.sqlalchemy.rows import slot_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from semel.testing.contracts.leases import claim_all
from semel.testing.contracts.rows import PARTITIONS, add, bury, ids, instance, unsent
from tests.services import Database
from tests.stores import shop

SERVERS = pytest.mark.parametrize(
    "kept", ["postgres", "postgres-psycopg", "mariadb"], indirect=True
)
POSTGRES = pytest.mark.parametrize("kept", ["postgres", "postgres-psycopg"], indirect=True)


def neighbour(key: str) -> str:
    """Return a key of another slot in the same partition."""
    slot = slot_of("default", key, SLOTS)
    for number in range(100_000):
        other = slot_of("default", f"n-{number}", SLOTS)
        if other != slot and other % COUNT == slot % COUNT:
            return f"n-{number}"
    raise AssertionError


@SERVERS
async def test_finding_01_a_number_that_is_not_visible_yet(storage: SqlAlchemyStorage) -> None:
    """A later number of the same partition is visible: the floor must not rise above the gap."""
    async with shop.stalled_commit(storage, key="k"):
        await add(storage, "later", key=neighbour("k"))
        [later] = await unsent(storage)
        assert [later.partition] == list(await storage.relay.busy([later.partition]))
    early, later_again = await storage.relay.fetch([Read(later.partition, 0, 10)])
    assert early.sequence < later.sequence == later_again.sequence
    assert ["k", neighbour("k")] == [e.envelope.order_key for e in (early, later_again)]
    assert [] == list(await storage.relay.busy(PARTITIONS))


@POSTGRES
async def test_finding_01_a_bulk_makes_every_partition_busy(storage: SqlAlchemyStorage) -> None:
    """It holds no slot, only the global lock."""
    keys = [f"bulk-{number}" for number in range(200)]

    async def bulk() -> None:
        async with storage.unit_of_work() as uow:
            for key in keys:
                await uow.outbox.add("t", 1, key=key)
            await uow.commit()

    async with shop.stalling(storage.engine) as stall, asyncio.timeout(shop.PATIENCE):
        task = asyncio.create_task(bulk())
        await stall.reached.wait()
        assert set(PARTITIONS) == set(await storage.relay.busy(PARTITIONS))
        stall.go_on.set()
        await task
    assert [] == list(await storage.relay.busy(PARTITIONS))


@SERVERS
async def test_finding_16_marks_under_way_hold_off_a_takeover(
    storage: SqlAlchemyStorage, another: SqlAlchemyStorage
) -> None:
    """A DEAD mark waits for a row; its lease must not change hands before it has landed."""
    await add(storage, "t", key="k")
    old = instance("old", seconds=0.0)
    epochs = await claim_all(storage, old)
    [entry] = await unsent(storage)
    failure = Failure(entry=entry, attempts=5, error="no", retry_in=None, blocks=True)
    async with another.engine.connect() as blocker, another.engine.connect() as watch:
        await blocker.execute(update(OutboxRecord).values(error_message="touched"))
        marking = asyncio.create_task(storage.relay.fail(old, epochs, [failure]))
        await shop.until(lambda: shop.someone_waits(watch))
        claims = await another.relay.claim(instance("heir"), 64)
        assert entry.partition not in {claim.partition for claim in claims}
        await blocker.rollback()
        async with asyncio.timeout(shop.PATIENCE):
            assert [entry.sequence] == list(await marking)
    [claim] = await another.relay.claim(instance("heir"), 64)
    assert entry.partition == claim.partition


@SERVERS
async def test_finding_16_an_owner_can_renew_while_it_marks(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """On PostgreSQL a renewal does not even wait for the mark."""
    await add(storage, "t", key="k")
    projector = instance()
    epochs = await claim_all(storage, projector)
    [entry] = await unsent(storage)
    failure = Failure(entry=entry, attempts=1, error="no", retry_in=1.0)
    async with storage.engine.connect() as blocker, storage.engine.connect() as watch:
        await blocker.execute(update(OutboxRecord).values(error_message="touched"))
        marking = asyncio.create_task(storage.relay.fail(projector, epochs, [failure]))
        await shop.until(lambda: shop.someone_waits(watch))
        renewal = asyncio.create_task(storage.relay.heartbeat(projector))
        if kept.name != "mariadb":
            async with asyncio.timeout(5):
                await renewal
            assert not marking.done()
        await blocker.rollback()
        async with asyncio.timeout(shop.PATIENCE):
            await marking
            assert 64 == len((await renewal).leases)


@SERVERS
async def test_finding_17_the_relay_reads_committed_rows_whatever_the_default(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """A SERIALIZABLE projector would abort business transactions, and gap locks stop them (D10)."""
    query = text(
        "SELECT @@tx_isolation" if kept.name == "mariadb" else "SHOW transaction_isolation"
    )
    engine = create_async_engine(kept.url, isolation_level="SERIALIZABLE")
    async with engine.connect() as connection:
        assert "serializable" == str(await connection.scalar(query)).lower()
    async with SqlAlchemyStorage(engine) as strict:
        found = []
        for kept_connection in (strict.relay._reader, strict.relay._writer):
            async with kept_connection.use() as connection:
                found.append(await connection.scalar(query))
        async with relay_engine(engine).connect() as connection:
            found.append(await connection.scalar(query))
    await engine.dispose()
    assert ["read committed"] * 3 == [level.lower().replace("-", " ") for level in found]


async def test_finding_21_rows_behind_a_blocked_key_cost_the_others_nothing(
    storage: SqlAlchemyStorage,
) -> None:
    """They leave the lane that is read, so that a small limit reaches what can be sent."""
    await add(storage, *["blocked"] * 500, key="k")
    await add(storage, "free", key=neighbour("k"))
    head = (await unsent(storage))[0]
    await bury(storage, head.envelope.event_id)
    projector = instance()
    epochs = await claim_all(storage, projector)
    behind = [e.sequence for e in await unsent(storage) if e.key == ("default", "k")]
    await storage.relay.park(projector, epochs, behind)
    [entry] = await storage.relay.fetch([Read(head.partition, 0, 10)])
    assert "free" == entry.envelope.topic
    await storage.outbox.requeue([head.envelope.event_id])
    assert 500 == await storage.relay.unpark(PARTITIONS, blocked=())
    first, second, *_ = await storage.relay.fetch([Read(head.partition, 0, 10)])
    assert [head.sequence, behind[0]] == [first.sequence, second.sequence]


async def test_finding_22_a_newcomer_without_partitions_is_counted(
    storage: SqlAlchemyStorage, another: SqlAlchemyStorage
) -> None:
    """Else its share would never be given up for it."""
    owner, newcomer = instance("owner"), instance("newcomer")
    await claim_all(storage, owner)
    assert 1 == (await storage.relay.heartbeat(owner)).instances
    standing = await another.relay.heartbeat(newcomer)
    assert ({}, 2, None) == (standing.leases, standing.instances, standing.conflict)
    assert 2 == (await storage.relay.heartbeat(owner)).instances


async def test_finding_23_a_late_mark_does_not_overwrite_sent(storage: SqlAlchemyStorage) -> None:
    """Neither PUBLISHING nor FAILED nor DEAD."""
    await add(storage, "t", "t", "t", key="k")
    projector = instance()
    epochs = await claim_all(storage, projector)
    entries = await unsent(storage)
    await storage.relay.acknowledge([entry.sequence for entry in entries], keep=True)
    await storage.relay.begin(projector, entries)
    for retry_in in (1.0, None):
        failures = [
            Failure(entry=e, attempts=1, error="no", retry_in=retry_in, blocks=True)
            for e in entries
        ]
        assert [] == list(await storage.relay.fail(projector, epochs, failures))
    assert {("SENT", None)} == {(row.status, row.lane) for row in await shop.rows(storage)}


@SERVERS
async def test_fm_r21_a_cancelled_statement_does_not_answer_the_next_one(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """The connection is discarded: its answer may still be under way."""
    [event_id] = await add(storage, "t")
    await ids(storage)
    lock = "LOCK TABLES outbox WRITE" if kept.name == "mariadb" else "LOCK TABLE outbox"
    async with storage.engine.connect() as blocker:
        await blocker.execute(text(lock))
        reading = asyncio.create_task(ids(storage))
        done, _ = await asyncio.wait({reading}, timeout=0.2)
        assert set() == done
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        if kept.name == "mariadb":
            await blocker.execute(text("UNLOCK TABLES"))
        await blocker.rollback()
    async with asyncio.timeout(shop.PATIENCE):
        assert [] == list(await storage.relay.busy(PARTITIONS))
        assert [event_id] == await ids(storage)


@POSTGRES
async def test_fm_r25_a_listener_that_dies_listens_again(
    storage: SqlAlchemyStorage, another: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its connection; polling goes on, and so does listening, a little later."""
    monkeypatch.setattr("semel.sqlalchemy.wakeup._RECONNECT_SECONDS", 0.05)
    woken = asyncio.Event()
    unsubscribe = storage.relay.subscribe(woken.set)
    async with asyncio.timeout(shop.PATIENCE):
        for kill in (True, False):
            while not woken.is_set():
                await add(another, "t")
                await asyncio.sleep(0.02)
            if kill:
                async with another.engine.connect() as connection:
                    ended = await connection.execute(
                        text(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                            "AND query ILIKE 'LISTEN%'"
                        )
                    )
                    assert 1 == len(ended.all())
                woken.clear()
    unsubscribe()


@pytest.mark.parametrize("kept", ["postgres", "postgres-psycopg"], indirect=True)
async def test_fm_p15_a_server_that_may_lose_commits_is_named(
    storage: SqlAlchemyStorage, kept: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """An event could be published whose transaction is lost in a crash: a warning at the start."""
    async with storage.engine.begin() as connection:
        name = storage.engine.url.database
        await connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    try:
        async with SqlAlchemyStorage(kept.url) as risky:
            with caplog.at_level(logging.WARNING, "semel"):
                await risky.ping()
    finally:
        async with storage.engine.begin() as connection:
            await connection.execute(text(f"ALTER DATABASE {name} RESET synchronous_commit"))
    assert 1 == len([r for r in caplog.records if "synchronous_commit" in r.getMessage()])
