"""Searches that look at few rows at a time find every row once, whatever they look for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.operations import Count, InboxFilter, OutboxFilter, Verb
from semel.sqlalchemy import inbox_store, outbox_bulk, outbox_search
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import InboxStatus, OutboxStatus
from semel.testing.contracts.inbox import admit, receipt, transaction
from semel.testing.contracts.rows import add, bury, send


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of three rows, two of them per search, and no lane with few rows."""
    for module in (outbox_search, inbox_store):
        monkeypatch.setattr(module, "_WINDOW", 3)
        monkeypatch.setattr(module, "_WINDOWS", 2)
    monkeypatch.setattr(outbox_bulk, "_WINDOW", 3)


async def _fill(storage: SqlAlchemyStorage) -> list[str]:
    """Twenty-four events: every fifth is DEAD, every fourth NEW, the others are SENT."""
    added = await add(storage, *(f"t{n % 3}" for n in range(24)))
    await bury(storage, *added[::5])
    new = set(added[::4])
    await send(storage, *(i for n, i in enumerate(added) if n % 5 and i not in new))
    return added


@pytest.mark.parametrize("scanned", [5, 1000])
@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_the_outbox(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch, limit: int, scanned: int
) -> None:
    added = await _fill(storage)
    monkeypatch.setattr(outbox_search, "SCANNED", scanned)
    dead = added[::5]
    for where, expected in (
        (OutboxFilter(), added),
        (OutboxFilter(topic="t1"), added[1::3]),
        (OutboxFilter(status=OutboxStatus.DEAD), dead),
        (OutboxFilter(status=OutboxStatus.DEAD, topic="t0"), [added[0], added[15]]),
        (OutboxFilter(status=OutboxStatus.NEW), [i for i in added[::4] if i not in dead]),
        (OutboxFilter(topic="absent"), []),
    ):
        found: list[str] = []
        before: int | None = None
        while True:
            page = await storage.outbox.search(where, before=before, limit=limit)
            assert limit >= len(page)
            found += [record.id for record in page]
            if page.next is None:
                break
            assert before is None or page.next < before
            before = page.next
        assert expected[::-1] == found, where
        exported = [row["id"] async for row in storage.outbox.export(where, batch_size=limit)]
        assert expected == exported, where


async def test_counting_stops(storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count says so when it has not looked at all rows; so do the figures."""
    await _fill(storage)
    monkeypatch.setattr(outbox_search, "SCANNED", 4)
    assert Count(4, capped=True) == await storage.outbox.count()
    assert Count(4, capped=True) == await storage.outbox.count(
        OutboxFilter(status=OutboxStatus.DEAD)
    )
    monkeypatch.setattr(outbox_search, "SCANNED", 6)
    assert Count(5) == await storage.outbox.count(OutboxFilter(status=OutboxStatus.DEAD))


@pytest.mark.parametrize("batch_size", [1, 2, 100])
async def test_bulk_actions(storage: SqlAlchemyStorage, batch_size: int) -> None:
    """Every row that matches, once, and no other."""
    added = await _fill(storage)
    steps = [
        step
        async for step in storage.outbox.bulk(
            Verb.DROP, OutboxFilter(topic="t0"), batch_size=batch_size
        )
    ]
    assert 2 == steps[-1].changed
    positions = [step.position for step in steps]
    assert sorted(set(positions)) == positions
    left = [row["id"] async for row in storage.outbox.export()]
    assert [i for i in added if i not in (added[0], added[15])] == left


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_the_inbox(storage: SqlAlchemyStorage, limit: int) -> None:
    """Also where records are of the same moment, and of several tenants."""
    receipts = [receipt(f"m-{n:02}") for n in range(9)]
    await admit(storage, *receipts)
    await admit(storage, *(replace(r, tenant_id="acme") for r in receipts[:4]))
    async with transaction(storage) as gate:
        for number in range(2):
            await gate.settle(
                receipt(f"d-{number}"), status=InboxStatus.DEAD, attempts=1, reason="boom"
            )
    ours = {("default", r.message_id) for r in receipts}
    theirs = {("acme", r.message_id) for r in receipts[:4]}
    dead = {("default", "d-0"), ("default", "d-1")}
    for where, expected in (
        (InboxFilter(), ours | theirs | dead),
        (InboxFilter(tenant_id="acme"), theirs),
        (InboxFilter(status=InboxStatus.DEAD), dead),
        (InboxFilter(reason="absent"), set()),
    ):
        found: list[tuple[str, str]] = []
        before: str | None = None
        while True:
            page = await storage.inbox.search(where, before=before, limit=limit)
            assert limit >= len(page)
            found += [(record.tenant_id, record.message_id) for record in page]
            if page.next is None:
                break
            before = page.next
        assert (len(expected), expected) == (len(found), set(found)), where
