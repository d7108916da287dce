"""Figures cost the database the same, however many people look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import pytest
from sqlalchemy import event

from semel.dashboard.live import MAX_TENANTS, MINUTES, RECENT, Live
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.dashboard.rows import add, dead
from tests.dashboard.site import Site, basic, make_site, serving
from tests.dashboard.workload import make_hub


@contextmanager
def counted(storage: SqlAlchemyStorage) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_c, _k, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(storage.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(storage.engine.sync_engine, "before_cursor_execute", note)


@pytest.fixture
def live(storage: SqlAlchemyStorage) -> Live:
    return Live(make_hub(storage))


async def test_a_sample(live: Live, storage: SqlAlchemyStorage) -> None:
    """Backlog, dead and age; throughput from the second sample on."""
    await add(storage, "one")
    await live.sample()
    for number in range(4):
        await add(storage, f"more-{number}")
    await dead(storage, "gone", key="k")
    await live.sample()

    first, second = live.series(None).recent
    assert (1, 0, None) == (first["backlog"], first["dead"], first["written"])
    assert (5, 1, 1) == (second["backlog"], second["dead"], second["blocked_keys"])
    assert second["written"] is not None
    assert second["written"] > 0
    assert 0 == second["sent"]
    assert second["oldest"] is not None


async def test_statements_do_not_grow_with_viewers(live: Live, storage: SqlAlchemyStorage) -> None:
    """One viewer or two hundred of the same tenants: the same statements per sample."""
    await add(storage, "one")
    counts = []
    for viewers in (1, 200):
        with ExitStack() as stack:
            for _ in range(viewers):
                stack.enter_context(live.watching(None))
                stack.enter_context(live.watching("acme"))
            await live.close()  # the samples below are the only ones
            with counted(storage) as statements:
                await live.sample()
            counts.append(len(statements))

    assert counts[0] == counts[1]
    assert counts[0] <= 40


async def test_memory_is_bounded(live: Live) -> None:
    """A day of points, and no more tenants than are looked at."""
    await live.sample()
    series = live.series(None)
    point = series.recent[-1]
    for minute in range(3000):
        series.add({**point, "at": point["at"] + 60 * minute})
    for number in range(500):
        live.series(f"tenant-{number}")

    assert (RECENT, MINUTES) == (len(series.recent), len(series.minutes))
    assert len(live._series) <= MAX_TENANTS + 1
    assert live.series(None) is series


async def test_streams_share_the_samples(site: Site, storage: SqlAlchemyStorage) -> None:
    """Many streams get the same points; each costs no statement of its own."""
    await add(storage, "one")
    watched = make_site(site.hub, sample_seconds=0.05)
    async with watched.dashboard, serving(watched.dashboard) as base:

        async def look() -> list[float]:
            points: list[float] = []
            headers = {"authorization": basic("viewer")}
            async with (
                httpx2.AsyncClient(timeout=60, headers=headers) as us,
                us.stream("GET", f"{base}/live") as answer,
            ):
                told = ""
                async for line in answer.aiter_lines():
                    if line.startswith("event: "):
                        told = line.removeprefix("event: ")
                    if line.startswith("data: ") and told == "point":
                        point = json.loads(line.removeprefix("data: "))
                        points += [point["at"]] if point else []
                    if len(points) == 3:
                        return points
            return points

        async with asyncio.timeout(60):
            seen = await asyncio.gather(*(look() for _ in range(8)))
        sampled = {point["at"] for point in watched.dashboard.live.series(None).recent}
        assert {at for points in seen for at in points} <= sampled
        async with asyncio.timeout(20):
            while watched.dashboard.streams:
                await asyncio.sleep(0.02)  # those who left are noticed


async def test_trouble_is_told_and_ends(live: Live, storage: SqlAlchemyStorage) -> None:
    """Without the table there is no point, and afterwards there is one again."""
    async with storage.engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE outbox RENAME TO elsewhere")
    await live.sample()
    assert live.series(None).failed is not None
    async with storage.engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO outbox")
    await live.sample()
    assert live.series(None).failed is None
    assert 1 == len(live.series(None).recent)
