"""A page asks the database as often when the tables are large as when they are small."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert

from semel.dashboard.views import VIEWS
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import InboxRecord
from tests.dashboard.rows import kill
from tests.dashboard.site import Site
from tests.dashboard.test_live import counted

FEW, MANY = 60, 2400
MOST = 60


async def fill(storage: SqlAlchemyStorage, start: int, stop: int) -> None:
    numbers = range(start, stop)
    async with storage.unit_of_work(tenant_id="acme") as uow:
        for number in numbers:
            await uow.outbox.add("orders", {"n": number}, key=f"k{number}", event_id=f"e{number}")
        await uow.commit()
    await kill(storage, [f"e{number}" for number in numbers if number % 2], error="no")
    now = datetime.now(UTC)
    async with storage.engine.begin() as connection:
        await connection.execute(
            insert(InboxRecord),
            [
                {
                    "tenant_id": "acme",
                    "consumer_name": "shop",
                    "message_id": f"e{number}",
                    "event_type": "orders",
                    "received_at": now - timedelta(seconds=number),
                    "processed_at": now - timedelta(seconds=number),
                }
                for number in numbers
            ],
        )


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.path)
async def test_statements_of_a_page(site: Site, storage: SqlAlchemyStorage, view) -> None:
    await site.dashboard.live.close()
    query = {"id": "e1", "consumer": "shop", "of": "acme"}
    if view.path not in ("/event", "/edit", "/message"):
        query = {}
    counts = []
    done = 0
    async with site.client("admin") as us:
        await us.get("/jobs")  # from here on the password is known
        for size in (FEW, MANY):
            await fill(storage, done, size)
            done = size
            await site.dashboard.live.sample()
            with counted(storage) as statements:
                answer = await us.get(view.path, params=query)
            assert 200 == answer.status_code
            counts.append(len(statements))

    assert max(counts) <= MOST
    if view.path not in ("/event", "/edit"):  # these look for a time by halving: a few more
        assert counts[0] == counts[1]
