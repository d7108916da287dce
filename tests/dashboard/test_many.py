"""A hundred thousand dead events in a real browser: progress, cancel, two operators, order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from semel import InMemoryMessageBus, SqlAlchemyStorage
from semel.sqlalchemy.layout import DEAD_BLOCKING
from tests.dashboard.site import PASSWORD, Site, make_site, serving
from tests.dashboard.workload import make_hub
from tests.services import Database

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

EVENTS, KEYS = 100_000, 100


@pytest.fixture
async def site(postgres: Database) -> AsyncIterator[Site]:
    """A dashboard of a hub that does not run, and its dead events."""
    async with SqlAlchemyStorage(postgres.url) as storage:
        await storage.initialize()
        await _fill(storage)
        site = make_site(make_hub(storage, InMemoryMessageBus()), sample_seconds=0.5)
        async with site.dashboard:
            yield site


async def _fill(storage: SqlAlchemyStorage) -> None:
    async with storage.unit_of_work(tenant_id="acme") as uow:
        for number in range(KEYS):  # one of each key, as the library writes it
            await uow.outbox.add("orders", {"n": number}, key=f"k{number}", event_id=f"e{number}")
        await uow.commit()
    async with storage.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO outbox (id, tenant_id, topic, event_type, order_key, occurred_at, "
                "payload, content_type, event_metadata, created_at, partition_no, lane) "
                "SELECT 'e' || n, tenant_id, topic, event_type, order_key, occurred_at, "
                "json_build_object('n', n), content_type, event_metadata, now(), partition_no, "
                "lane "
                f"FROM generate_series({KEYS}, {EVENTS - 1}) AS n "
                f"JOIN outbox AS o ON o.id = 'e' || (n % {KEYS}) ORDER BY n"
            )
        )
        await connection.execute(
            text(
                "UPDATE outbox SET status = 'DEAD', retry_count = 1, last_attempt_at = now(), "
                f"lane = partition_no + {DEAD_BLOCKING}, "
                "error_message = 'PublishError: message ' || id || ' is too large'"
            )
        )
        await connection.execute(text("ANALYZE outbox"))


async def press(page: Page, url: str, name: str) -> None:
    """Ask for the requeue of the one group there is."""
    address = url.replace("//", f"//{name}:{PASSWORD.replace(' ', '%20')}@")
    await page.goto(f"{address}/jobs")
    await page.goto(f"{url}/dead")
    await page.wait_for_selector('#live[data-state="on"]')
    await page.locator('.group button:has-text("Requeue")').click()
    await page.wait_for_selector("#confirm-count:has-text('events match now')")


async def left(site: Site, status: str) -> int:
    """How many rows are not in this state; `stats` would stop counting."""
    async with site.hub.storage.engine.connect() as connection:
        query = text("SELECT count(*) FROM outbox WHERE status <> :status")
        return int(await connection.scalar(query, {"status": status}) or 0)


async def test_requeue_with_progress_and_cancel(page: Page, site: Site) -> None:
    async with serving(site.dashboard) as url:
        await press(page, url, "operator")
        assert "50,000+" in await page.inner_text("#confirm-count")  # counting stops there
        await page.click("#confirm-yes")
        await page.wait_for_selector(".job progress")
        async with asyncio.timeout(60):
            while await page.inner_text(".job .num") == "0 changed":
                await asyncio.sleep(0.02)
        await page.click(".job button:has-text('Cancel')")
        await page.wait_for_selector(".job:has-text('cancelled')")

        [job] = site.dashboard.jobs.all()
        assert 0 < job.changed < EVENTS
        assert job.changed == await left(site, "DEAD")

        # Two operators press at once; together they requeue what is left, each row once.
        other = await page.context.browser.new_page()  # type: ignore[union-attr]
        await asyncio.gather(press(page, url, "operator"), press(other, url, "admin"))
        await asyncio.gather(page.click("#confirm-yes"), other.click("#confirm-yes"))
        async with asyncio.timeout(300):
            while len(done := [j for j in site.dashboard.jobs.all() if j.state == "finished"]) < 2:
                await asyncio.sleep(0.1)
        assert EVENTS - job.changed == sum(each.changed for each in done)
        assert 0 == await left(site, "NEW")
        await page.wait_for_selector(".job:has-text('finished')")

    audit = await site.hub.storage.audit.search()
    assert {"operator", "admin"} == {row.actor for row in audit}
    assert 3 == len(audit)
    await _check_order(site)


async def _check_order(site: Site) -> None:
    """Every event goes out once, and those of a key in their order."""
    bus = site.hub.bus
    assert isinstance(bus, InMemoryMessageBus)
    seen: dict[Any, list[int]] = {}
    publish = bus.publish_many

    async def watch(messages: Any) -> Any:
        for message in messages:
            seen.setdefault(message.order_key, []).append(message.payload["n"])
        return await publish(messages)

    bus.publish_many = watch  # type: ignore[method-assign]
    async with site.hub.running(consumers=False):
        async with asyncio.timeout(400):
            while await left(site, "SENT"):
                await asyncio.sleep(0.2)
    assert EVENTS == sum(len(numbers) for numbers in seen.values())
    assert all(numbers == sorted(numbers) for numbers in seen.values())
