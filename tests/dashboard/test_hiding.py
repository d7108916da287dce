"""Payloads and secrets stay with those who may see them: pages, API, stream and log."""

from __future__ import annotations

import logging

import httpx2
import pytest

from semel.dashboard.views import VIEWS
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.dashboard.rows import dead, handled
from tests.dashboard.site import PEOPLE, Site, basic, make_site, serving
from tests.dashboard.workload import keep_key, make_hub

CANARY = "CANARY-7f3"
PLACES = ("payload", "header", "stack", "inbox-payload", "inbox-extra")


async def fill(site: Site, storage: SqlAlchemyStorage) -> None:
    """Everything that must be hidden, each with a mark of its own."""
    await dead(
        storage,
        "one",
        payload={"card": f"{CANARY}-payload"},
        metadata={"x-note": f"{CANARY}-header", "authorization": f"{CANARY}-always"},
        error=f"PublishError: refused by kafka://app:{CANARY}-always@broker:9092",
        stack=f"frame with {CANARY}-stack, password={CANARY}-always",
    )
    await handled(
        storage,
        "one",
        payload={"card": f"{CANARY}-inbox-payload"},
        extra_data={"note": f"{CANARY}-inbox-extra"},
        reason=f"ValueError: token={CANARY}-always",
    )
    await keep_key(site.hub, 2)  # an answer with the same mark


async def everything(site: Site, name: str) -> str:
    """All that a person can be shown, and what the stream says first."""
    texts = []
    queries = {"/event": {"id": "one"}, "/edit": {"id": "one"}}
    queries["/message"] = {"id": "one", "consumer": "shop", "of": "acme"}
    async with site.client(name) as us:
        for view in VIEWS:
            query = queries.get(view.path, {})
            texts += [
                (await us.get(path, params=query)).text for path in (view.path, view.api_path)
            ]
    async with (
        serving(site.dashboard) as base,
        httpx2.AsyncClient(headers={"authorization": basic(name)}, timeout=30) as real,
        real.stream("GET", f"{base}/live") as answer,
    ):
        async for line in answer.aiter_lines():
            texts.append(line)
            if answer.status_code != 200 or line.startswith("event: jobs"):
                break
    return "\n".join(texts)


@pytest.mark.parametrize("name", PEOPLE)
async def test_payloads_are_for_those_who_may_see_them(
    site: Site, storage: SqlAlchemyStorage, name: str
) -> None:
    await fill(site, storage)

    seen = await everything(site, name)

    allowed = name in ("reader", "admin", "acme-admin")
    for place in PLACES:
        assert allowed == (f"{CANARY}-{place}" in seen), place
    assert f"{CANARY}-always" not in seen
    assert f"{CANARY}-answer" not in seen


async def test_nothing_of_it_is_logged(
    site: Site, storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even when something fails: what the database says has values in it."""
    await fill(site, storage)
    caplog.set_level(logging.DEBUG)
    async with site.client("admin") as us:
        await us.get("/event", params={"id": "one"})
        edited = {"id": "one", "payload": f'"{CANARY}-new"'}
        assert 200 == (await us.post("/api/events/edit", json=edited)).status_code
        async with storage.engine.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE outbox RENAME TO elsewhere")
        failed = await us.post("/api/events/edit", json=edited)
        page = await us.get("/outbox")

    assert (503, 503) == (failed.status_code, page.status_code)
    assert "The database does not answer." in page.text
    for text in (failed.text, page.text, "\n".join(_ours(caplog))):
        assert CANARY not in text
        assert "SELECT" not in text


def _ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    # The driver's own log at DEBUG is not ours.
    return [r.getMessage() for r in caplog.records if r.name.startswith(("semel", "starlette"))]


async def test_the_address_of_the_database_is_nowhere(storage: SqlAlchemyStorage) -> None:
    """A database that does not answer is a 503 without its address; so is the sampler's word."""
    url = f"postgresql+asyncpg://app:{CANARY}@127.0.0.1:9/shop"
    async with SqlAlchemyStorage(url) as away:
        site = make_site(make_hub(away))
        async with site.dashboard, site.client("admin") as us:
            await site.dashboard.live.sample()
            for path in ("/", "/outbox", "/api/outbox", "/api/overview"):
                answer = await us.get(path)
                assert answer.status_code in (200, 503)
                assert CANARY not in answer.text
            assert "The database does not answer: the figures are old." in (await us.get("/")).text
