"""The demo's books balance, and would not if something were wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, select

from semel.cli.demo.books import audit
from semel.cli.demo.shop import Order, Reservation, Shop
from semel.cli.demo.story import Story

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semel", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.timeout(120)
def test_the_books_balance(tmp_path: Path) -> None:
    """Orders are placed through an outage and two kills; nothing is lost, nothing doubled."""
    done = run("demo", "--orders", "60", "--seed", "3", "--keep", str(tmp_path / "demo"))

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "The books balance." in done.stdout
    assert 2 == done.stdout.count("was killed without any clean-up")
    assert "\x1b[" not in done.stdout


@pytest.fixture
async def story(tmp_path: Path) -> Story:
    """A story whose two orders of one customer took effect, in order."""
    story = Story(tmp_path, orders=2, seed=1)
    await story.storage.initialize()
    async with story.storage.engine.begin() as connection:
        await connection.run_sync(Shop.metadata.create_all)
        for version in (1, 2):
            row = {"customer": "c", "version": version}
            await connection.execute(insert(Order).values(id=f"o{version}", **row))
            await connection.execute(insert(Reservation).values(order_id=f"o{version}", **row))
    return story


async def broken(story: Story) -> list[str]:
    findings = await audit(story)
    await story.close()
    return [finding.text for finding in findings if not finding.holds]


async def test_audit_accepts_good_books(story: Story) -> None:
    """Nothing is wrong with them."""
    assert [] == await broken(story)


async def test_audit_finds_a_lost_effect(story: Story) -> None:
    """An order without effect is told."""
    async with story.storage.engine.begin() as connection:
        await connection.execute(delete(Reservation).where(Reservation.order_id == "o2"))

    assert ["2 orders committed, 1 without effect"] == await broken(story)


async def test_audit_finds_a_double_effect(story: Story) -> None:
    """An order that took effect twice is told."""
    async with story.storage.engine.begin() as connection:
        await connection.execute(insert(Reservation).values(order_id="o2", customer="c", version=2))

    assert ["0 events came more than once, 1 took effect twice"] == await broken(story)


async def test_audit_finds_a_ghost(story: Story) -> None:
    """An effect of an order that was never committed is told."""
    async with story.storage.engine.begin() as connection:
        await connection.execute(delete(Order).where(Order.id == "o2"))

    assert ["0 transactions rolled back, 1 left an event"] == await broken(story)


async def test_audit_finds_a_wrong_order(story: Story) -> None:
    """A customer's second order that took effect first is told."""
    async with story.storage.engine.begin() as connection:
        first = await connection.scalar(
            select(Reservation.number).where(Reservation.order_id == "o1")
        )
        await connection.execute(delete(Reservation).where(Reservation.number == first))
        await connection.execute(insert(Reservation).values(order_id="o1", customer="c", version=1))

    assert ["1 customers, each one's orders in order"] == await broken(story)


def test_run_names_what_is_wrong_with_the_target() -> None:
    """A target that is no hub gets a line that says so, not a stack."""
    missing = run("run", "nothing.here:hub")
    shapeless = run("run", "nothing")
    no_hub = run("run", "json:dumps")

    assert [2, 2, 2] == [missing.returncode, shapeless.returncode, no_hub.returncode]
    assert "nothing.here" in missing.stderr
    assert "package.module:name" in shapeless.stderr.replace("\n", " ")
    assert "no hub" in no_hub.stderr
    assert "Traceback" not in missing.stderr + shapeless.stderr + no_hub.stderr


def test_db_check_names_the_command_to_run(tmp_path: Path) -> None:
    """Without tables, `db check` says how to get them; after `db create` it is content."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'empty.db'}"
    before = run("db", "check", "--database", url)
    create = run("db", "create", "--database", url)
    after = run("db", "check", "--database", url)

    assert [1, 0, 0] == [before.returncode, create.returncode, after.returncode]
    assert "semel db create" in before.stderr
    assert "Traceback" not in before.stderr
