"""Every page and every action in a real browser, on PostgreSQL, while a shop is at work."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from semel import SqlAlchemyStorage
from semel.operations import OutboxFilter
from semel.states import InboxStatus, OutboxStatus
from tests.dashboard.site import PASSWORD, Site, make_site, serving
from tests.dashboard.workload import ShopBus, call, fill, make_hub, place
from tests.services import Database

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@dataclass(slots=True)
class Shop:
    """A hub at work, its dashboard, and the address of it."""

    site: Site
    url: str

    @property
    def storage(self) -> SqlAlchemyStorage:
        return self.site.hub.storage

    async def open(self, page: Page, path: str, *, name: str = "admin") -> None:
        """Go there as *name*; the page must obey its own content security policy."""
        address = self.url.replace("//", f"//{name}:{PASSWORD.replace(' ', '%20')}@")
        if page.url == "about:blank":
            await page.goto(address + "/jobs")  # from here on the browser knows who it is
        await page.goto(self.url + path)
        await page.wait_for_selector('#live[data-state="on"]')

    async def status(self, event_id: str) -> str:
        record = await self.storage.outbox.get(event_id)
        return "gone" if record is None else record.status

    async def dead(self, **where: str) -> list[str]:
        found = await self.storage.outbox.search(OutboxFilter(status=OutboxStatus.DEAD, **where))
        return [row.id for row in found]


@pytest.fixture
async def shop(postgres: Database) -> AsyncIterator[Shop]:
    async with SqlAlchemyStorage(postgres.url) as storage:
        await storage.initialize()
        hub = make_hub(storage)
        site = make_site(hub, sample_seconds=0.5)
        async with hub.running(), serving(site.dashboard) as url:
            await fill(hub, orders=25)
            yield Shop(site, url)


async def confirm(page: Page) -> None:
    await page.wait_for_selector("#confirm[open]")
    await page.click("#confirm-yes")


async def do(page: Page) -> None:
    """Confirm, and wait for the page as it is afterwards."""
    async with page.expect_navigation():
        await confirm(page)


async def shows(page: Page, selector: str, text: str) -> None:
    """Wait for a text; the policy of the page forbids to wait inside of it."""

    async def is_there() -> bool:
        return text == await page.inner_text(selector)

    await until(is_there)


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.05)


async def test_every_page(page: Page, shop: Shop) -> None:
    """Each opens, is live, fits a narrow screen, and its scripts and styles are not refused."""
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    [event, *_] = await shop.dead()
    [message, *_] = await shop.storage.inbox.search()
    about = f"id={message.message_id}&consumer={message.consumer_name}&of={message.tenant_id}"
    for path, text in {
        "/": "Overview",
        "/outbox": "Outbox",
        f"/event?id={event}": "Where it is, and why",
        f"/edit?id={event}": "Edit and requeue as new",
        "/dead": "Dead letters",
        "/blocked": "Blocked keys",
        "/pauses": "wait for legal",
        "/projectors": "Partitions",
        "/inbox": "Skipped as duplicates",
        f"/message?{about}": "Hash of the payload",
        "/consumers": "healthy",
        "/idempotency": "COMPLETED",
        "/audit": "outbox.pause",
        "/jobs": "Bulk actions",
    }.items():
        await page.set_viewport_size({"width": 1280, "height": 800})
        await shop.open(page, path)
        assert text in await page.inner_text("main"), path
        await page.set_viewport_size({"width": 360, "height": 700})
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, path
    assert [] == complaints


async def test_figures_move_without_a_reload(page: Page, shop: Shop) -> None:
    await shop.open(page, "/")
    await page.evaluate("window.untouched = true")
    dead = len(await shop.dead())
    await shows(page, ".tile b[data-figure=dead]", str(dead))

    await place(shop.site.hub, 77, key="fresh", topic="exports", type="ReportBuilt", wrong="size")

    await shows(page, ".tile b[data-figure=dead]", str(dead + 1))
    await page.wait_for_selector(".chart path.curve", state="attached")
    await page.click("[data-range=minutes]")
    await page.wait_for_selector("[data-range=minutes][aria-pressed=true]")
    assert await page.evaluate("window.untouched") is True


async def test_one_event(page: Page, shop: Shop) -> None:
    """Requeue, skip, edit and drop, each with its question and its row in the audit."""
    requeued, skipped, edited, dropped = (await shop.dead(topic="exports"))[:4]
    await shop.open(page, f"/event?id={requeued}")
    await page.click("text=Requeue >> nth=0")
    await page.wait_for_selector("#confirm[open]")
    await page.click("#confirm button[value=no]")
    assert "DEAD" == await shop.status(requeued)

    bus = shop.site.hub.bus
    assert isinstance(bus, ShopBus)
    bus.repaired = True
    await page.click("text=Requeue >> nth=0")
    await do(page)
    await until(lambda: _is(shop, requeued, "SENT"))

    await shop.open(page, f"/event?id={skipped}")
    await page.click('button:has-text("Skip")')
    await do(page)
    await page.wait_for_selector("text=goes on without it")

    await shop.open(page, f"/edit?id={edited}")
    await page.fill("textarea", "{not json")
    await page.click("[data-edit] button")
    await page.wait_for_selector("[data-problem]:not([hidden])")
    await page.fill("textarea", '{"order": 1, "fixed": true}')
    await page.click("[data-edit] button")
    await page.wait_for_url("**/event?*")
    made = await page.inner_text(".head .mono")
    await until(lambda: _is(shop, made.split()[0], "SENT"))
    await shop.open(page, f"/event?id={made.split()[0]}")
    assert '"fixed": true' in await page.inner_text("pre.payload")
    assert edited in await page.inner_text("main")

    await shop.open(page, f"/event?id={dropped}")
    await page.click('button:has-text("Drop")')
    await do(page)
    await until(lambda: _is(shop, dropped, "gone"))

    actions = [(row.actor, row.action) for row in await shop.storage.audit.search()]
    assert [
        ("admin", "outbox.drop"),
        ("admin", "outbox.edit"),
        ("admin", "outbox.release"),
        ("admin", "outbox.requeue"),
    ] == actions[:4]


async def _is(shop: Shop, event_id: str, status: str) -> bool:
    return status == await shop.status(event_id)


async def test_a_group_with_progress(page: Page, shop: Shop) -> None:
    """The number that matches is asked for first; the bar tells how far it is, and the end."""
    bus = shop.site.hub.bus
    assert isinstance(bus, ShopBus)
    bus.repaired = True
    await shop.open(page, "/dead", name="operator")
    assert 0 == await page.locator('button:has-text("Drop")').count()
    group = page.locator(".group", has_text="ReportBuilt")
    await group.locator('button:has-text("Requeue")').click()
    await page.wait_for_selector("#confirm-count:has-text('events match now')")
    await confirm(page)
    await page.wait_for_selector(".job:has-text('finished')")

    assert "operator" in await page.inner_text(".job")
    await until(lambda: _none_dead(shop, "exports"))


async def _none_dead(shop: Shop, topic: str) -> bool:
    return not await shop.dead(topic=topic)


async def test_pauses_leases_inbox_and_keys(page: Page, shop: Shop) -> None:
    await shop.open(page, "/pauses")
    await page.click('button:has-text("Resume")')
    await do(page)
    await page.wait_for_selector("text=Nothing is paused")
    await page.fill('input[name="topic"]', "orders")
    await page.fill('input[name="reason"]', "stock-taking")
    await page.click('form button:has-text("Pause")')
    await do(page)
    await page.wait_for_selector("text=stock-taking")

    await shop.open(page, "/projectors")
    await page.click("text=Take its leases")
    await do(page)

    [dead, *_] = [
        row for row in await shop.storage.inbox.search() if row.status == InboxStatus.DEAD
    ]
    about = f"id={dead.message_id}&consumer={dead.consumer_name}&of={dead.tenant_id}"
    await shop.open(page, f"/message?{about}")
    await page.click('button:has-text("Forget")')
    await do(page)
    await page.wait_for_selector("text=nothing that you may see")

    await shop.open(page, "/idempotency")
    keys = await page.locator("tbody tr").count()
    await page.locator('button:has-text("Forget")').first.click()
    await do(page)
    assert keys - 1 == await page.locator("tbody tr").count()

    await shop.open(page, "/audit")
    text = await page.inner_text("table")
    for action in ("outbox.resume", "outbox.pause", "lease.release", "inbox.forget"):
        assert action in text
    assert "idempotency.release" in text


async def test_search_keyboard_language_and_theme(page: Page, shop: Shop) -> None:
    await shop.open(page, "/outbox")
    await page.keyboard.press("/")
    assert "topic" == await page.evaluate("document.activeElement.name")
    await page.keyboard.type("exports")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**topic=exports**")
    assert "key=" not in page.url
    topics = await page.locator("tbody td:nth-child(2)").all_inner_texts()
    assert {"exports"} == set(topics)
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/event?**")
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await page.wait_for_url("**/dead**")
    await page.keyboard.press("?")
    await page.wait_for_selector("#keys[open]")
    await page.keyboard.press("Escape")

    async with page.expect_navigation():
        await page.select_option('[data-preference="language"]', "zh")
    assert "死信" == await page.inner_text("h1")
    async with page.expect_navigation():
        await page.select_option('[data-preference="theme"]', "dark")
    assert "rgb(14, 20, 25)" == await page.evaluate(
        "getComputedStyle(document.body).backgroundColor"
    )


async def test_from_an_event_to_the_key_of_its_request(page: Page, shop: Shop) -> None:
    """Request, causes, event, handlers, following events: in this order, and each is a way on."""
    order = await call(shop.site.hub, 7, "a-key-of-a-client")
    await until(lambda: _is(shop, order, "SENT"))
    key = hashlib.sha256(b"a-key-of-a-client").hexdigest()
    await shop.open(page, f"/event?id={order}", name="acme-viewer")
    assert ["Request", "This event", "Handled by"] == (
        await page.locator(".graph h3").all_inner_texts()
    )[:3]
    node = page.locator(".graph .node >> nth=0")
    assert f"POST /checkout Idempotency key {key[:8]}…" == " ".join(
        (await node.inner_text()).split()
    )

    await node.click()
    await page.wait_for_url("**/idempotency?**")
    row = page.locator(f"tr#key-{key[:16]}:target")
    assert "POST /checkout" in await row.inner_text()

    await shop.open(page, f"/event?id={order}")
    async with page.expect_navigation():
        await page.select_option('[data-preference="language"]', "zh")
    assert "请求" == (await page.locator(".graph h3").all_inner_texts())[0]
    assert "幂等键" in await page.inner_text(".graph .node >> nth=0")


async def test_a_viewer_sees_no_buttons(page: Page, shop: Shop) -> None:
    [event, *_] = await shop.dead(tenant_id="acme")
    await shop.open(page, f"/event?id={event}", name="acme-viewer")
    text = await page.inner_text("main")
    assert "You may not see payloads." in text
    assert 0 == await page.locator("main [data-post]").count()
    assert "globex" not in await page.inner_text("body")
