"""A real browser: Debian's Chromium without a window, driven by Playwright.

Without it, tests are skipped on a laptop and fail when ``CI=true``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.services import tool

if TYPE_CHECKING:
    from playwright.async_api import Page

PATIENCE_MS = 30_000


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """An empty page in a fresh profile; a script that fails on it fails the test."""
    path = tool("chromium")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # As root, and with the small /dev/shm of a container.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=path, args=options)
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        yield page
        await browser.close()
    assert not failures
