"""The page of the example in a real browser: orders appear and change without a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.web.shop import Shop

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Shop(tmp_path) as shop:
        yield shop


def row(order: dict[str, str], status: str) -> str:
    return f'tr[data-order="{order["id"]}"][data-status="{status}"]'


async def open_page(page: Page, shop: Shop) -> None:
    await page.goto(shop.url)
    await page.wait_for_selector('#stream[data-state="live"]')
    # Gone after a reload.
    await page.evaluate("window.untouched = true")


async def check_untouched(page: Page) -> None:
    assert await page.evaluate("window.untouched") is True
    assert await page.evaluate("document.body.dataset.lost") is None


async def test_an_order_appears_and_changes(page: Page, shop: Shop) -> None:
    """Placed through the API elsewhere, it is on the page, and so is what becomes of it."""
    await open_page(page, shop)

    paid = await asyncio.to_thread(shop.order)
    declined = await asyncio.to_thread(shop.order, customer="Eve", item="coffee", quantity=20)

    await page.wait_for_selector(row(paid, "paid"))
    await page.wait_for_selector(row(declined, "declined"))
    cells = await page.locator(f"{row(paid, 'paid')} td").all_inner_texts()
    assert [paid["id"][:8], "Ada", "2 \u00d7 tea", "9.00", "paid"] == cells
    await check_untouched(page)


async def test_an_order_placed_on_the_page(page: Page, shop: Shop) -> None:
    """The form places it; the answer comes as an event."""
    await open_page(page, shop)

    await page.fill('input[name="customer"]', "Grace")
    await page.select_option('select[name="item"]', "cocoa")
    await page.click("button")

    await page.wait_for_selector('tr[data-status="paid"]')
    assert "Grace" in await page.inner_text("#orders")
    assert await page.is_hidden("#notice")
    await check_untouched(page)


async def test_the_stream_survives_a_restart(page: Page, shop: Shop) -> None:
    """The server goes and comes back; what happened while the page was cut off is made up for."""
    await open_page(page, shop)
    before = await asyncio.to_thread(shop.order)
    await page.wait_for_selector(row(before, "paid"))

    await page.context.set_offline(True)
    await asyncio.to_thread(shop.stop)
    await page.wait_for_selector('#stream[data-state="connecting"]')
    await asyncio.to_thread(shop.start)
    missed = await asyncio.to_thread(shop.order, customer="Missed")
    await asyncio.to_thread(shop.settled, missed["id"])
    assert await page.locator(f'tr[data-order="{missed["id"]}"]').count() == 0
    await page.context.set_offline(False)

    await page.wait_for_selector(row(missed, "paid"))
    after = await asyncio.to_thread(shop.order, customer="After")
    await page.wait_for_selector(row(after, "paid"))
    await check_untouched(page)


async def test_hostile_names_are_text(page: Page, shop: Shop) -> None:
    """What others send is shown as it is, and never becomes part of the page."""
    text = "<img src=x onerror='globalThis.hit = true'>"
    hostile = {"id": '"]x', "customer": text, "item": text, "status": text, "placed_at": text}
    order = {**hostile, "quantity": 1, "cents": 1, "version": 1}
    await page.route("**/orders?*", lambda route: route.fulfill(json=[order]))

    await page.goto(shop.url)
    await page.wait_for_selector("#orders tr")

    assert text in await page.inner_text("#orders")
    assert 0 == await page.locator("#orders img").count()
    assert await page.evaluate("globalThis.hit") is None
