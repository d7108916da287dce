"""The simulated loop and the driver do what the simulation rests on."""

from __future__ import annotations

import asyncio
import sqlite3
from random import Random

import pytest

from tests.simulation.driver import EPOCH, open_database
from tests.simulation.loop import Process, SimulatedLoop, StandstillError


@pytest.fixture
def loop():
    loop = SimulatedLoop(Random(1))
    yield loop
    loop.close()


def test_time_passes_without_waiting(loop):
    loop.run_until_complete(asyncio.sleep(3600))
    assert 3600 <= loop.elapsed < 3601


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_seed_decides_who_runs_next(shuffled):
    async def order() -> list[int]:
        ran: list[int] = []

        async def note(number: int) -> None:
            await asyncio.sleep(0)
            ran.append(number)

        await asyncio.gather(*(note(number) for number in range(20)))
        return ran

    orders = []
    for seed in (1, 1, 2):
        loop = SimulatedLoop(Random(seed), shuffled=shuffled)
        orders.append(loop.run_until_complete(order()))
        loop.close()
    assert orders[0] == orders[1]
    assert shuffled == (orders[0] != orders[2])
    assert shuffled == (list(range(20)) != orders[0])


def test_a_frozen_process_does_nothing_until_it_is_thawed(loop):
    process, ticks = Process(loop, "one"), []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(round(loop.elapsed))

    async def story() -> None:
        task = process.spawn(tick())
        await asyncio.sleep(2.5)
        process.freeze()
        await asyncio.sleep(10)
        assert [1, 2] == ticks
        process.thaw()
        await asyncio.sleep(1.5)
        assert 13 <= ticks[2]
        task.cancel()

    loop.run_until_complete(story())


def test_everybody_waiting_for_nobody_is_told(loop):
    with pytest.raises(StandstillError, match="nothing is planned"):
        loop.run_until_complete(loop.create_future())


def test_the_database_has_the_simulated_clock(tmp_path):
    raw = open_database(str(tmp_path / "clock.db"), lambda: 90.5)
    form = "%Y-%m-%d %H:%M:%f"
    [now, later, left] = raw.execute(
        "SELECT strftime(?, 'now'), strftime(?, 'now', '+30.000 seconds'), "
        "(julianday('2026-01-01 00:02:00.500000') - julianday('now')) * 86400.0",
        [form, form],
    ).fetchone()
    raw.close()
    assert ("2026-01-01 00:01:30.500", "2026-01-01 00:02:00.500") == (now, later)
    assert 30 == pytest.approx(left)
    assert 2026 == EPOCH.year


def test_the_clock_reads_what_sqlite_would(tmp_path):
    """The functions that take SQLite's place agree with it."""
    ours, theirs = open_database(str(tmp_path / "a.db"), lambda: 0.0), sqlite3.connect(":memory:")
    for moment in ("2026-03-01 12:30:15.250000", "2024-02-29 23:59:59.999000"):
        for sql in (
            "SELECT strftime('%Y-%m-%d %H:%M:%f', ?)",
            "SELECT strftime('%Y-%m-%d %H:%M:%f', ?, '-90.500 seconds')",
        ):
            assert (
                theirs.execute(sql, [moment]).fetchone() == ours.execute(sql, [moment]).fetchone()
            )
        sql = "SELECT (julianday(?) - julianday('2026-01-01 00:00:00.000')) * 86400.0"
        [expected], [found] = (c.execute(sql, [moment]).fetchone() for c in (theirs, ours))
        assert expected == pytest.approx(found, abs=0.001)
    ours.close()
    theirs.close()
