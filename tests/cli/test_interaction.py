"""Somebody sits at the terminal: questions, Ctrl-C, progress."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from semel.testing.contracts.rows import add, bury, send
from tests.cli.conftest import Cli, both
from tests.cli.hubs import write_service

pytestmark = both

OWN_ENGINE = """
from os import environ
from sqlalchemy.ext.asyncio import create_async_engine
from semel import Hub, SqlAlchemyStorage
hub = Hub("shop", storage=SqlAlchemyStorage(create_async_engine(environ["SERVICE_DATABASE"])))
"""


class Screen:
    """The other end of a terminal."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = ""

    def read_until(self, pattern: str) -> bool:
        """Tell whether it appeared before the command ended."""
        while not re.search(pattern, self.seen):
            try:
                self.seen += os.read(self.number, 4096).decode("utf-8", "replace")
            except OSError:
                return False
        return True

    def read_all(self) -> None:
        try:
            while data := os.read(self.number, 4096):
                self.seen += data.decode("utf-8", "replace")
        except OSError:
            return

    def type(self, text: str) -> None:
        os.write(self.number, text.encode())


@contextmanager
def at_terminal(cli: Cli, *arguments: str) -> Iterator[tuple[Screen, subprocess.Popen[str]]]:
    """Run a command whose stdin and stderr are a terminal."""
    ours, theirs = os.openpty()
    process = cli.start(*arguments, stdin=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield Screen(ours), process
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def dead(cli: Cli, number: int) -> None:
    async def work(storage) -> None:
        await bury(storage, *await add(storage, *["orders"] * number))

    cli.do(work)


def test_a_question_before_anything_is_changed(cli: Cli) -> None:
    """It tells how many; no means no."""
    dead(cli, 3)
    with at_terminal(cli, "outbox", "drop", "--all", "--json") as (screen, process):
        assert screen.read_until(r"drop 3 events\?")
        screen.type("n\n")
        assert 1 == process.wait(60)
        screen.read_all()
        assert "nothing was changed" in screen.seen
    assert 3 == cli.json("status")["outbox"]["counts"]["DEAD"]
    with at_terminal(cli, "outbox", "drop", "--all", "--json") as (screen, process):
        assert screen.read_until(r"drop 3 events\?")
        screen.type("y\n")
        assert process.stdout is not None
        assert 3 == json.loads(process.stdout.read())["changed"]
        assert 0 == process.wait(60)
    assert 0 == cli.json("status")["outbox"]["counts"]["DEAD"]


def test_ctrl_c_at_the_question(cli: Cli) -> None:
    """Nothing happened, and there is no stack."""
    dead(cli, 1)
    with at_terminal(cli, "outbox", "drop", "--all") as (screen, process):
        assert screen.read_until(r"drop 1 events\?")
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(60)
        screen.read_all()
        assert "Traceback" not in screen.seen
    assert 1 == cli.json("status")["outbox"]["counts"]["DEAD"]


def test_a_canary_asks_before_the_rest(cli: Cli) -> None:
    """Yes goes on from there; each event is sent once more."""

    async def work(storage) -> None:
        await send(storage, *await add(storage, *["orders"] * 5))

    cli.do(work)
    options = ["--topic", "orders", "--canary", "2", "--yes", "--json"]
    with at_terminal(cli, "outbox", "replay", *options) as (screen, process):
        assert screen.read_until(r"go on with the rest\?")
        counts = cli.json("status")["outbox"]["counts"]
        assert (2, 3) == (counts["NEW"], counts["SENT"])
        screen.type("y\n")
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
        assert (5, True) == (answer["changed"], answer["finished"])
    assert 5 == cli.json("status")["outbox"]["counts"]["NEW"]


def test_ctrl_c_ends_a_cleanup_between_two_batches(cli: Cli) -> None:
    """The summary tells exactly what is gone."""

    async def work(storage) -> None:
        for _ in range(10):
            made = await add(storage, *["orders"] * 100)
            await send(storage, *made)

    cli.do(work)
    # Old enough once a second has passed: then a batch of one each, a thousand times.
    options = ["outbox", "--keep-sent", "1s", "--batch-size", "1", "--yes", "--json"]
    removed = 0
    while not removed:
        with at_terminal(cli, "cleanup", *options) as (screen, process):
            if not screen.read_until(r"[1-9]\d* rows"):
                continue  # too young still
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            answer = json.loads(process.stdout.read())
            assert 130 == process.wait(60), screen.seen
            screen.read_all()
            removed = answer["removed"]["outbox"]
            assert answer["cancelled"]
            assert "cancelled" in screen.seen
    assert 1000 - removed == cli.json("status")["outbox"]["counts"]["SENT"]


def test_a_hub_with_an_engine_of_its_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in several steps, each in an event loop of its own, shares no connection."""
    name = write_service(cli.folder, OWN_ENGINE, "engined")
    monkeypatch.setenv("SERVICE_DATABASE", cli.url)
    dead(cli, 2)
    done = cli.run("outbox", "requeue", "--all", "--yes", "--json", "--hub", name)
    assert 0 == done.returncode, done.stderr
    assert 2 == json.loads(done.stdout)["changed"]
    assert "" == done.stderr
