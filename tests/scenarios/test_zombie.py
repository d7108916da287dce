"""A projector that slept past its lease changes nothing that matters when it wakes."""

from __future__ import annotations

import signal
from pathlib import Path

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.processes import FileBus, spawn
from tests.scenarios.relaying import (
    add_many,
    all_sent,
    assert_ordered,
    each_database,
    eventually,
    keyed,
    projector,
    rows,
    running,
    statuses,
)
from tests.services import Database

EVENTS = 200


@each_database
async def test_stopped_past_its_lease_and_continued(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R04: SIGSTOP, another one drains, SIGCONT; first occurrences stay in order, all is SENT."""
    await add_many(storage, keyed(EVENTS, 5))
    broker = FileBus(tmp_path / "broker")
    slow = {"delay": 0.1}
    with spawn(database.url, broker.path, bus=slow, config={"concurrency": 1}) as zombie:
        await eventually(lambda: len(broker.ids()) >= 20)
        zombie.send(signal.SIGSTOP)
        async with running(projector(storage, broker)):  # type: ignore[arg-type]
            await eventually(lambda: all_sent(storage))
            zombie.send(signal.SIGCONT)
            await add_many(storage, keyed(EVENTS, 5, prefix="f"))
            await eventually(lambda: all_sent(storage))
            counts = await zombie.stopped()
    published = broker.ids()
    await broker.close()

    assert sorted(await rows(storage)) == sorted(set(published))
    assert_ordered(published)
    assert {"SENT": 2 * EVENTS} == await statuses(storage)
    assert counts["outbox_lease_lost_total"] > 0


@each_database
async def test_failure_mark_of_a_zombie_is_not_written(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R04, finding 16: what a zombie's broker rejected does not become FAILED or DEAD."""
    await add_many(storage, keyed(40, 5))
    broker = FileBus(tmp_path / "broker")
    rejecting = {"delay": 0.3, "reject": 1.0}
    settings = {"concurrency": 1, "max_retry_attempts": 1, "batch_size": 40}
    with spawn(database.url, broker.path, bus=rejecting, config=settings) as zombie:
        await eventually(lambda: _owns(storage))
        zombie.send(signal.SIGSTOP)
        async with running(projector(storage, broker)):  # type: ignore[arg-type]
            await eventually(lambda: all_sent(storage))
            zombie.send(signal.SIGCONT)
            await zombie.stopped()
    await broker.close()

    assert {"SENT": 40} == await statuses(storage)


async def _owns(storage: SqlAlchemyStorage) -> bool:
    from sqlalchemy import func, select

    from semel.sqlalchemy.tables import OutboxLease

    async with storage.engine.connect() as connection:
        owned = await connection.scalar(
            select(func.count()).select_from(OutboxLease).where(OutboxLease.owner.is_not(None))
        )
    return owned == 64
