"""`semel relay` and `semel run`: workers in processes of their own."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest
from sqlalchemy import select

from semel.sqlalchemy.bus_tables import BusMessage
from semel.testing.contracts.rows import add
from tests.cli.conftest import Cli, both
from tests.cli.hubs import SERVICE, write_service

pytestmark = both


def sent(cli: Cli, number: int) -> None:
    """Wait until so many events are SENT."""

    async def work(storage: Any) -> None:
        async with asyncio.timeout(60):
            while (await storage.outbox.stats()).counts["SENT"] < number:
                await asyncio.sleep(0.05)

    cli.do(work)


def test_relay_needs_no_code_of_the_service(cli: Cli) -> None:
    """From a database to a bus by their addresses; SIGTERM ends it and gives the leases back."""
    cli.do(lambda storage: add(storage, "orders", "orders"))
    process = cli.start("relay", "--bus", "database://", "--name", "shop")
    sent(cli, 2)
    assert ["shop"] == sources(cli)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (0, "") == (process.returncode, out), err
    assert "relays the events of shop" in err
    assert 0 == cli.json("status")["leases"]["held"]


def sources(cli: Cli) -> list[str]:
    """Which services the messages on the bus come from."""

    async def work(storage: Any) -> list[str]:
        async with storage.session_factory() as session:
            found = await session.scalars(select(BusMessage.headers))
            return sorted({headers["ce_source"] for headers in found})

    return cli.do(work)


def test_relay_of_a_hub(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its projector runs; its consumers do not."""
    name = write_service(cli.folder)
    monkeypatch.setenv("SERVICE_DATABASE", cli.url)
    cli.do(lambda storage: add(storage, "orders", event_type="OrderPlaced"))
    process = cli.start("relay", "--hub", name)
    sent(cli, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (0, "") == (process.returncode, out), err
    assert [] == cli.json("inbox", "list")["items"]


def test_relay_without_a_broker(cli: Cli) -> None:
    """The way to name one is told; one with a password is refused as an argument."""
    done = cli("relay")
    assert 2 == done.exit_code
    assert "SEMEL_BUS_URL" in done.stderr
    assert 2 == cli("relay", "--bus", "amqp://u:CANARY-7f3@h").exit_code
    assert 2 == cli("relay", "--bus", "carrier-pigeon://h").exit_code


async def order(storage: Any) -> None:
    async with storage.unit_of_work() as uow:
        await uow.outbox.add("orders", {"order_id": "7"}, event_type="OrderPlaced")
        await uow.commit()


def test_run_a_hub(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Projector and consumers, until SIGTERM; log lines may be JSON."""
    name = write_service(cli.folder)
    monkeypatch.setenv("SERVICE_DATABASE", cli.url)
    cli.do(order)
    process = cli.start("--log-format", "json", "run", name)
    assert process.stdout is not None
    assert "reserved 7\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert 0 == process.returncode, err
    assert 2 == cli("run", name, "--only", "nothing").exit_code


def test_a_second_signal_ends_at_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one waits for a handler that works; whoever sends another does not want to."""
    slow = SERVICE.replace("print(", "import asyncio; print(") + "    await asyncio.sleep(600)\n"
    name = write_service(cli.folder, slow)
    monkeypatch.setenv("SERVICE_DATABASE", cli.url)
    cli.do(order)
    process = cli.start("run", name, stderr=None)
    assert process.stdout is not None
    assert process.stdout.readline()
    signals = 0
    while process.poll() is None and signals < 50:
        process.send_signal(signal.SIGTERM)
        signals += 1
        time.sleep(0.2)
    process.communicate(timeout=60)

    assert -signal.SIGTERM == process.returncode
    assert signals >= 2


def test_a_broker_in_trouble_is_on_the_screen(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, and without the password of its address; `why` tells it, too."""
    monkeypatch.setenv("SEMEL_BUS_URL", "redis://:CANARY-7f3@127.0.0.1:1/0")
    (event_id,) = cli.do(lambda storage: add(storage, "orders"))
    process = cli.start("-v", "relay")
    try:
        breakers: list[Any] = []
        for _ in range(600):
            breakers = cli.json("status")["breakers"]
            if breakers:
                break
        assert breakers
        shown = cli("status")
        assert "in trouble the broker since" in shown.stdout
        why = cli("outbox", "why", event_id)
        assert "breaker" in {
            item["kind"] for item in cli.json("outbox", "why", event_id)["reasons"]
        }
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    assert 0 == process.returncode, err
    assert "the broker is in trouble" in err
    assert "CANARY-7f3" not in out + err + shown.output + why.output + str(breakers)
