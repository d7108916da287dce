"""Several projectors at once: a partition has one owner, and each key keeps its order."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.processes import FileBus, spawn
from tests.scenarios.relaying import (
    ScriptedBus,
    add_many,
    all_sent,
    assert_no_duplicates,
    assert_ordered,
    each_database,
    eventually,
    keyed,
    projector,
    rows,
    running,
    sqlite_only,
)
from tests.services import Database

EVENTS, KEYS = 1000, 50


@each_database
async def test_four_with_rejections_keep_the_order(storage: SqlAlchemyStorage):
    """R17: a tenth of all sendings is rejected for a moment; each key is published in order."""
    bus = ScriptedBus()
    bus.faults.reject(lambda _: True, kind="transient", ratio=0.1)
    four = [projector(storage, bus, max_retry_attempts=50, lease_seconds=10) for _ in range(4)]
    async with running(*four):
        for part in range(4):
            await add_many(storage, keyed(EVENTS // 4, KEYS, prefix=f"p{part}x"))
        await eventually(lambda: all_sent(storage), seconds=60)

    assert sorted(await rows(storage)) == sorted(bus.published_ids())
    assert_ordered(bus.published_ids())


@each_database
async def test_four_without_faults_send_nothing_twice(storage: SqlAlchemyStorage):
    """R06: without a fault every event is published exactly once."""
    bus = ScriptedBus()
    async with running(*(projector(storage, bus, lease_seconds=10) for _ in range(4))):
        for part in range(4):
            await add_many(storage, keyed(EVENTS // 4, KEYS, prefix=f"p{part}x"))
        await eventually(lambda: all_sent(storage), seconds=60)

    assert EVENTS == len(bus.published_ids())
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
async def test_four_processes(storage: SqlAlchemyStorage, database: Database, tmp_path: Path):
    """R06, R17: the same with processes that know nothing of each other."""
    broker = FileBus(tmp_path / "broker")
    settings = {"max_retry_attempts": 50, "lease_seconds": 10}
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(
                spawn(database.url, broker.path, bus={"reject": 0.1}, config=settings)
            )
        for part in range(4):
            await add_many(storage, keyed(EVENTS // 4, KEYS, prefix=f"p{part}x"))
        await eventually(lambda: all_sent(storage), seconds=90)
    published = broker.ids()
    await broker.close()

    assert sorted(await rows(storage)) == sorted(published)
    assert_ordered(published)


@each_database
async def test_joining_and_leaving_share_the_partitions(storage: SqlAlchemyStorage):
    """O02: a fair share for each, handed over without a duplicate; one that leaves gives all."""
    bus = ScriptedBus()
    first, second, third = (projector(storage, bus, lease_seconds=10) for _ in range(3))
    async with running(first):
        await eventually(lambda: len(first.partitions) == 64)
        await add_many(storage, keyed(100, 20, prefix="a"))
        async with running(second, third):
            await eventually(
                lambda: sorted(len(p.partitions) for p in (first, second, third)) == [20, 22, 22]
            )
            shares = [first.partitions, second.partitions, third.partitions]
            await add_many(storage, keyed(100, 20, prefix="b"))
            await eventually(lambda: all_sent(storage))
        await add_many(storage, keyed(100, 20, prefix="c"))
        await eventually(lambda: len(first.partitions) == 64)
        await eventually(lambda: all_sent(storage))

    assert 64 == len(frozenset.union(*shares)) == sum(map(len, shares))
    assert 300 == len(bus.published_ids())
    assert_no_duplicates(bus.published_ids())
    assert_ordered(bus.published_ids())


@each_database
async def test_partitions_are_free_at_once_when_a_projector_stops(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R20: a successor need not wait for the lease to run out."""
    broker = FileBus(tmp_path / "broker")
    await add_many(storage, keyed(20, 5))
    with spawn(database.url, broker.path, config={"lease_seconds": 60.0}) as child:
        await eventually(lambda: all_sent(storage))
        await child.stopped()
    async with running(projector(storage, broker, lease_seconds=60.0)) as relay:  # type: ignore[arg-type]
        await eventually(lambda: len(relay.partitions) == 64, seconds=10)
        await add_many(storage, keyed(20, 5, prefix="more"))
        await eventually(lambda: all_sent(storage), seconds=10)
    assert_no_duplicates(broker.ids())
    await broker.close()


@sqlite_only
async def test_a_killed_projector_is_replaced_within_the_lease_time(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R02, promise 6: its partitions go to the others when its lease has run out."""
    broker = FileBus(tmp_path / "broker")
    with spawn(database.url, broker.path) as child:
        await add_many(storage, keyed(20, 5))
        await eventually(lambda: all_sent(storage))
        async with running(projector(storage, broker)) as relay:  # type: ignore[arg-type]
            await eventually(lambda: len(relay.partitions) == 32)
            child.send(signal.SIGKILL)
            await child.ended()
            await eventually(lambda: len(relay.partitions) == 64, seconds=1.0 + 5.0)
            await add_many(storage, keyed(20, 5, prefix="more"))
            await eventually(lambda: all_sent(storage))
    assert_ordered(broker.ids())
    await broker.close()
