"""Many events at once: a cut-off, progress, cancel, and two operators at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from semel.dashboard.jobs import MAX_RUNNING
from semel.operations import OutboxFilter
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import OutboxStatus
from tests.dashboard.rows import add, kill
from tests.dashboard.site import Site

EVENTS = 1700


@pytest.fixture
async def ids(storage: SqlAlchemyStorage) -> list[str]:
    """Dead events of ten keys; a number in each error differs."""
    ids = [f"e{number:05d}" for number in range(EVENTS)]
    async with storage.unit_of_work(tenant_id="acme") as uow:
        for number, event_id in enumerate(ids):
            await uow.outbox.add(
                "orders",
                {"n": number},
                event_type="OrderPlaced",
                key=f"k{number % 10}",
                event_id=event_id,
            )
        await uow.commit()
    for start in range(0, EVENTS, 500):
        chunk = ids[start : start + 500]
        await kill(storage, chunk, error=f"PublishError: order {start} of 'x{start}' is too large")
    return ids


async def finished(client: httpx2.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found = (await client.get("/api/jobs")).json()["jobs"]
            [same] = [each for each in found if each["id"] == job["id"]]
            if same["state"] != "running":
                return dict(same)
            await asyncio.sleep(0.02)


async def test_a_group_is_requeued(site: Site, storage: SqlAlchemyStorage, ids: list[str]) -> None:
    """Errors that differ in numbers and quoted names are one group; its filter finds it all."""
    async with site.client("operator") as us:
        found = (await us.get("/api/dead")).json()
        [group] = found["groups"]
        assert (EVENTS, "orders", "OrderPlaced") == (
            group["count"],
            group["topic"],
            group["event_type"],
        )
        assert "PublishError: order … of … is too large" == group["pattern"]
        where = {"topic": "orders", "event_type": "OrderPlaced", "error": group["fragment"]}
        query = {"topic": "orders", "type": "OrderPlaced", "error": group["fragment"]}
        matching = (await us.get("/api/matching", params={"status": "DEAD", **query})).json()
        assert {"number": EVENTS, "capped": False} == matching

        few = await us.post("/api/jobs/requeue", json={"where": where, "limit": 5})
        assert 5 == (await finished(us, few.json()))["changed"]
        job = (await us.post("/api/jobs/requeue", json={"where": where})).json()
        await add(storage, "late", tenant="acme", topic="orders", event_type="OrderPlaced")
        done = await finished(us, job)

    assert ("finished", EVENTS - 5, 1.0) == (done["state"], done["changed"], done["share"])
    rows = await storage.outbox.search(OutboxFilter(status=OutboxStatus.NEW), limit=1000)
    assert 1000 == len(rows)
    audit = await storage.audit.search()
    assert ["outbox.requeue"] * 2 == [row.action for row in audit]
    assert {"operator"} == {row.actor for row in audit}


async def test_two_operators_at_once(
    site: Site, storage: SqlAlchemyStorage, ids: list[str]
) -> None:
    """Each row is requeued once, whoever comes first."""
    async with site.client("operator") as one, site.client("admin") as two:
        jobs = await asyncio.gather(
            *(us.post("/api/jobs/requeue", json={"where": {}}) for us in (one, two))
        )
        done = [await finished(one, job.json()) for job in jobs]

    assert ["finished"] * 2 == [each["state"] for each in done]
    assert EVENTS == sum(each["changed"] for each in done)
    counts = (await storage.outbox.stats()).counts
    assert (EVENTS, 0) == (counts[OutboxStatus.NEW], counts[OutboxStatus.DEAD])


def hold(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch, *, after: int
) -> asyncio.Event:
    """Let bulk actions stop after so many batches, until the event is set."""
    store, held = type(storage.outbox), asyncio.Event()
    bulk = store.bulk

    async def steps(self: Any, *given: Any, **options: Any) -> AsyncIterator[Any]:
        if not after:
            await held.wait()
        number = 0
        async for step in bulk(self, *given, **options):
            yield step
            number += 1
            if number == after:
                await held.wait()

    monkeypatch.setattr(store, "bulk", steps)
    return held


async def test_cancel_keeps_what_is_done(
    site: Site, storage: SqlAlchemyStorage, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows in order are requeued, the others are as they were."""
    held = hold(storage, monkeypatch, after=1)
    async with site.client("operator") as us:
        job = (await us.post("/api/jobs/requeue", json={"where": {}})).json()
        answer = await us.post("/api/jobs/cancel", json={"id": job["id"]})
        assert 200 == answer.status_code
        held.set()
        done = await finished(us, job)

    assert "cancelled" == done["state"]
    assert 0 < done["changed"] < EVENTS
    statuses = []
    for event_id in (ids[0], ids[done["changed"] - 1], ids[done["changed"]], ids[-1]):
        record = await storage.outbox.get(event_id)
        assert record is not None
        statuses.append(record.status)
    assert ["NEW", "NEW", "DEAD", "DEAD"] == statuses
    assert 1 == len(await storage.audit.search())


async def test_too_many_at_once(
    site: Site, storage: SqlAlchemyStorage, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may run at a time are accepted, and the rest refused, while none has ended."""
    held = hold(storage, monkeypatch, after=0)
    async with site.client("operator") as us:
        answers = await asyncio.gather(
            *(us.post("/api/jobs/release", json={"where": {}}) for _ in range(MAX_RUNNING + 4))
        )
        held.set()
        for answer in answers:
            if answer.status_code == 200:
                await finished(us, answer.json())
    statuses = sorted(answer.status_code for answer in answers)
    assert [200] * MAX_RUNNING + [429] * 4 == statuses
