"""An event that kills the process each time it is published is isolated."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.processes import FileBus, spawn
from tests.scenarios.relaying import (
    ScriptedBus,
    add_many,
    assert_ordered,
    eventually,
    execute,
    keyed,
    projector,
    row,
    rows,
    running,
    sqlite_only,
    statuses,
)
from tests.services import Database

KILLER = "e0-0001"
LIVES = 8


@sqlite_only
async def test_an_event_that_kills_the_process(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R15: restarted again and again, the others go out, and it is DEAD after its attempts."""
    broker = FileBus(tmp_path / "broker")
    await add_many(storage, keyed(40, 4))
    settings = {"max_retry_attempts": 2, "lease_seconds": 2.0}
    deaths = 0
    for _ in range(LIVES):
        with spawn(database.url, broker.path, bus={"killer": KILLER}, config=settings) as child:
            await eventually(lambda child=child: _over(storage, child))
            found = await rows(storage)
            if "DEAD" in {row.status for row in found.values()}:
                await child.stopped()
                break
            assert -signal.SIGKILL == await child.ended()
            deaths += 1
    assert "DEAD" == found[KILLER].status
    assert deaths <= 2 + 2, "unknown at first, then suspected, then twice alone"
    assert 40 - 9 == len([r for r in found.values() if r.status == "SENT"]), "before it was DEAD"
    assert {KILLER} == {i for i, r in found.items() if r.error_message}, "nobody else is blamed"
    assert "died" in (found[KILLER].error_message or "")
    assert_ordered(broker.ids())
    await broker.close()


async def _over(storage: SqlAlchemyStorage, child) -> bool:
    if child.process.poll() is not None:
        return True
    return bool((await statuses(storage))["DEAD"])


async def _as_left_by_a_dead_owner(storage: SqlAlchemyStorage, *event_ids: str) -> None:
    """Rows that somebody was publishing when he died, with his lease run out."""
    names = ", ".join(f"'{name}'" for name in event_ids)
    await execute(storage, f"UPDATE outbox SET status = 'PUBLISHING' WHERE id IN ({names})")
    async with running(projector(storage, ScriptedBus(), tenant_id="nobody")) as relay:
        await eventually(lambda: relay.is_ready)
    await execute(storage, "DELETE FROM outbox_lease")
    for number in range(64):
        await execute(
            storage,
            "INSERT INTO outbox_lease (scope, partition_no, owner, epoch, expires_at) "
            f"VALUES ('*', {number}, 'dead', 1, '2020-01-01 00:00:00.000000')",
        )


@sqlite_only
async def test_what_a_dead_owner_was_publishing_goes_one_by_one(storage: SqlAlchemyStorage):
    """Finding 23: nothing else is in flight meanwhile, so that only the guilty one is counted."""
    await add_many(storage, keyed(30, 30))
    suspects = ["e3-0000", "e4-0000", "e7-0000"]
    await _as_left_by_a_dead_owner(storage, *suspects)
    bus = ScriptedBus()
    inside: set[str] = set()
    overlaps: list[tuple[list[str], list[str]]] = []

    async def script(messages):
        ids = {message.event_id for message in messages}
        if inside & set(suspects) or (inside and ids & set(suspects)):
            overlaps.append((sorted(inside), sorted(ids)))
        inside.update(ids)
        await asyncio.sleep(0.02)
        inside.difference_update(ids)

    bus.script = script
    async with running(projector(storage, bus, batch_size=5)):
        await eventually(lambda: len(bus.published_ids()) == 30)
        await eventually(lambda: _sent(storage, 30))
    assert [] == overlaps
    for event_id in suspects:
        assert [event_id] in bus.tries


async def _sent(storage: SqlAlchemyStorage, number: int) -> bool:
    return (await statuses(storage))["SENT"] == number


@sqlite_only
async def test_an_outage_takes_back_the_attempt_that_was_counted_for_a_crash(
    storage: SqlAlchemyStorage,
):
    """Promise 3: whoever lives to see the broker fail did not die of the event."""
    await add_many(storage, keyed(3, 3))
    await _as_left_by_a_dead_owner(storage, "e1-0000")
    bus = ScriptedBus()
    bus.faults.outage = True
    async with running(projector(storage, bus, max_retry_attempts=2)):
        await eventually(lambda: bus.pings >= 6)
        assert 0 == (await row(storage, "e1-0000")).retry_count
        bus.faults.outage = False
        await eventually(lambda: _sent(storage, 3))


@sqlite_only
async def test_after_a_crash_the_event_waits_before_it_is_tried_again(
    storage: SqlAlchemyStorage,
):
    """It does not loop hot: the next owner waits for the time that was stored beforehand."""
    await add_many(storage, keyed(3, 3))
    await _as_left_by_a_dead_owner(storage, "e1-0000")
    await execute(
        storage,
        "UPDATE outbox SET retry_count = 1, retry_after = "
        "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 seconds') || '000' WHERE id = 'e1-0000'",
    )
    bus, started = ScriptedBus(), time.monotonic()
    async with running(projector(storage, bus)):
        await eventually(lambda: len(bus.published_ids()) == 2)
        assert "e1-0000" not in bus.published_ids()
        await eventually(lambda: len(bus.published_ids()) == 3)
        assert time.monotonic() - started > 0.8
