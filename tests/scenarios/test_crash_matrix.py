"""A projector may be killed at any instruction: nothing is lost, and order per key stays."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

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
    sqlite_only,
)
from tests.services import Database

EVENTS = 60


async def _survive(storage: SqlAlchemyStorage, broker: FileBus) -> list[str]:
    """Let another projector finish the work; check the books; return what was published."""
    async with running(projector(storage, broker)):  # type: ignore[arg-type]
        await eventually(lambda: all_sent(storage))
    committed = list(await rows(storage))
    published = broker.ids()
    assert sorted(committed) == sorted(set(published)), "published if and only if committed"
    assert_ordered(published)
    await broker.close()
    return published


@pytest.mark.parametrize(
    ("point", "duplicates"),
    [("fetch", 0), ("publish_many", 20), ("acknowledge", 60)],
)
@each_database
async def test_a_projector_killed_at_work_is_replaced(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path, point: str, duplicates: int
):
    """R01, R02, R03: killed after fetch, after publish, after acknowledge."""
    await add_many(storage, keyed(EVENTS, 5))
    broker = FileBus(tmp_path / "broker")
    options = {"config": {"concurrency": 1}} if point == "publish_many" else {}
    with spawn(database.url, broker.path, kill=(point, 1), **options) as child:
        assert -signal.SIGKILL == await child.ended()
    published = await _survive(storage, broker)
    assert len(published) - EVENTS <= duplicates, "no more than what was in flight"
    if point == "publish_many":
        assert len(published) == EVENTS + 20, "confirmed but not marked: sent again"


@each_database
async def test_a_service_killed_after_a_commit(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R01: what was committed is published by whoever comes next."""
    broker = FileBus(tmp_path / "broker")
    with spawn(database.url, broker.path, writes=40, kill=("commit", 25)) as child:
        assert -signal.SIGKILL == await child.ended()
    assert 25 == len(await rows(storage))
    await _survive(storage, broker)


@pytest.mark.parametrize(
    "point",
    [
        "claim",
        "survey",
        "before publish_many",
        "before acknowledge",
        "before fail",
        "fail",
        "retire",
    ],
)
@sqlite_only
async def test_killed_at_every_other_call(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path, point: str
):
    """R03: wherever the projector dies, another one finds a state to go on from."""
    await add_many(storage, keyed(EVENTS, 5))
    broker = FileBus(tmp_path / "broker")
    reject = {"reject": 0.2} if "fail" in point else {}
    with spawn(database.url, broker.path, kill=(point, 1), bus=reject) as child:
        if point == "retire":
            await eventually(lambda: all_sent(storage))
            child.send(signal.SIGTERM)
        assert -signal.SIGKILL == await child.ended()
    await _survive(storage, broker)


@pytest.mark.parametrize("after", [1, 7, 19])
@sqlite_only
async def test_killed_in_the_middle_of_a_batch(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path, after: int
):
    """R07: a part of the batch reached the broker; all of it is sent again, none is missing."""
    await add_many(storage, keyed(EVENTS, 5))
    broker = FileBus(tmp_path / "broker")
    with spawn(database.url, broker.path, bus={"half": after}) as child:
        assert -signal.SIGKILL == await child.ended()
    assert after == len(broker.ids())
    await _survive(storage, broker)


@sqlite_only
async def test_killed_again_and_again(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R02, invariant 10: each life makes progress although every one ends by a kill."""
    await add_many(storage, keyed(EVENTS, 5))
    broker = FileBus(tmp_path / "broker")
    options = {"config": {"concurrency": 1}}
    for life in range(3):
        with spawn(database.url, broker.path, kill=("acknowledge", 1), **options) as child:
            assert -signal.SIGKILL == await child.ended(), life
    assert len(set(broker.ids())) >= EVENTS, "20 in each life"
    await _survive(storage, broker)
