"""The pictures of the documents: `python -m tests.dashboard.pictures` with PostgreSQL and Chromium.

A shop is at work meanwhile, so every run gives other figures.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright

from semel import Hub, SqlAlchemyStorage
from semel.operations import OutboxFilter
from semel.states import OutboxStatus
from tests.dashboard.site import PASSWORD, make_site, serving
from tests.dashboard.workload import CUSTOMERS, TENANTS, call, fill, make_hub, place
from tests.scenarios.relaying import eventually
from tests.services import fresh_database, tool

FOLDER = Path(__file__).parents[2] / "docs" / "images"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
WATCHED_SECONDS = 75
NUMBER = 10**6


async def work(hub: Hub) -> None:
    """Orders come and go in waves."""
    number = 1000
    while True:
        for _ in range(round(4 + 3 * math.sin(number / 60)) + random.randint(0, 2)):
            await place(hub, number, tenant=TENANTS[number % 2], key=random.choice(CUSTOMERS))
            number += 1
        await asyncio.sleep(0.5)


async def reserved(hub: Hub) -> str:
    """Place an order by the API; return the event in the middle of what follows."""
    await call(hub, NUMBER, "6a0e2f1c-8d1f")
    found: list[str] = []

    async def has_come() -> bool:
        rows = await hub.storage.outbox.search(OutboxFilter(topic="billing"), limit=40)
        ours = (row for row in rows if row.payload["order"] == NUMBER)
        found.extend(str(row.event_metadata["causation_id"]) for row in ours)
        return bool(found)

    await eventually(has_come, seconds=60.0)
    return found[0]


async def take(browser: Browser, url: str, name: str, **options: Any) -> None:
    context = await browser.new_context(
        viewport=options.pop("size", WIDE),
        color_scheme=options.pop("scheme", "light"),
        locale=options.pop("language", "en"),
        http_credentials={"username": "admin", "password": PASSWORD},
    )
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector('#live[data-state="on"]')
    await page.wait_for_timeout(2500)
    await page.screenshot(path=FOLDER / f"{name}.png")
    await context.close()


async def main(url: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    async with SqlAlchemyStorage(url) as storage, async_playwright() as playwright:
        await storage.initialize()
        hub = make_hub(storage)
        site = make_site(hub, sample_seconds=1.0)
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=tool("chromium"), args=options)
        async with hub.running(), serving(site.dashboard) as base:
            await fill(hub)
            site.dashboard.live.series(None).recent.clear()
            task = asyncio.create_task(work(hub))
            with site.dashboard.live.watching(None):
                await asyncio.sleep(WATCHED_SECONDS)
            dead = await storage.outbox.search(OutboxFilter(status=OutboxStatus.DEAD), limit=1)
            stock = await reserved(hub)
            await take(browser, f"{base}/", "dashboard-overview")
            await take(browser, f"{base}/dead", "dashboard-dead-letters")
            await take(browser, f"{base}/event?id={dead[0].id}", "dashboard-event", scheme="dark")
            await take(browser, f"{base}/event?id={stock}", "dashboard-causes")
            await take(browser, f"{base}/", "dashboard-narrow", size=NARROW, scheme="dark")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await browser.close()


if __name__ == "__main__":
    with fresh_database("postgres", Path(tempfile.mkdtemp())) as database:
        asyncio.run(main(database.url))
    sys.stdout.write(f"{FOLDER}\n")
