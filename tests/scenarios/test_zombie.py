"""A projector that slept past its lease changes nothing that matters when it wakes up."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.processes import FileBus, spawn
from tests.scenarios.relaying import (
    Counts,
    ScriptedBus,
    add_many,
    all_sent,
    assert_ordered,
    eventually,
    keyed,
    projector,
    rows,
    running,
    sqlite_only,
    statuses,
)
from tests.services import Database


@pytest.mark.parametrize(
    ("database", "rejections"),
    [("sqlite", 0.0), ("sqlite", 1.0), ("postgres", 1.0), ("mariadb", 1.0)],
    indirect=["database"],
)
async def test_stopped_past_its_lease_and_continued(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path, rejections: float
):
    """R04, finding 16, invariant 7: its marks are fenced; first occurrences stay in order."""
    broker = FileBus(tmp_path / "broker")
    await add_many(storage, keyed(200, 10))
    # Where it holds no transaction: SQLite knows only one writer.
    place = {"stop_at": 1, "reject": rejections}
    settings = {"batch_size": 10, "concurrency": 1, "max_retry_attempts": 1}
    with spawn(database.url, broker.path, bus=place, config=settings) as zombie:
        await eventually(zombie.is_stopped)
        async with running(projector(storage, broker)):  # type: ignore[arg-type]
            await eventually(lambda: all_sent(storage))
            finished = {i: (r.status, r.retry_count) for i, r in (await rows(storage)).items()}
            zombie.send(signal.SIGCONT)
            await add_many(storage, keyed(50, 10, prefix="later"))
            await eventually(lambda: all_sent(storage))
            counted = await zombie.stopped()
    found = await rows(storage)
    assert finished == {i: (found[i].status, found[i].retry_count) for i in finished}
    assert sorted(found) == sorted(set(broker.ids()))
    assert_ordered(broker.ids())
    assert counted["outbox_lease_lost_total"] > 0
    await broker.close()


@pytest.mark.parametrize(
    ("database", "method"), [("postgres", "_seed"), ("mariadb", "_held")], indirect=["database"]
)
async def test_frozen_in_the_middle_of_a_transaction_it_keeps_nobody_out(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path, method: str
):
    """Finding 7, promise 6: the server ends the transaction, and its locks are free."""
    broker = FileBus(tmp_path / "broker")
    await add_many(storage, keyed(20, 5))
    frozen = {"freeze": method, "bus": {"reject": 1.0}}
    with spawn(database.url, broker.path, **frozen) as zombie:
        await eventually(zombie.is_stopped)
        async with running(projector(storage, broker)):  # type: ignore[arg-type]
            await eventually(lambda: all_sent(storage), seconds=1.0 + 5.0 + 10.0)
    assert_ordered(broker.ids())
    await broker.close()


@sqlite_only
async def test_a_loop_that_is_blocked_for_longer_than_the_lease(storage: SqlAlchemyStorage):
    """R05, R22: by its own clock it stops publishing, and goes on under a new lease."""
    import time

    bus, counts = ScriptedBus(), Counts()
    await add_many(storage, keyed(100, 10))

    async def block(_):
        bus.script = None
        time.sleep(1.5)  # noqa: ASYNC251  on purpose

    bus.script = block
    async with running(projector(storage, bus, observer=counts, concurrency=1)):
        await eventually(lambda: all_sent(storage))
    assert counts.totals["outbox_lease_lost_total"] > 0
    assert_ordered(bus.published_ids())
    assert {"SENT"} == set(await statuses(storage))
