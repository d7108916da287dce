"""The database as the broker of several processes: killed, cut off, end to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select

from semel import BusError, Hub, MessageEnvelope, SqlAlchemyStorage
from semel.testing.contracts.harness import by_key, ids, message
from semel.testing.reader import Reader
from semel.transports.database import DatabaseMessageBus
from tests.proxy import Proxy
from tests.services import Database

ROOT = Path(__file__).parents[2]
LEASE = 2.0
KEYS, VERSIONS = 20, 30

# Writes down each message before it acks it, as one line at the end of the common file.
WORKER = """
import asyncio, json, os, sys
from semel.transports.database import DatabaseMessageBus
from semel.wire import decode

async def main(url, path, lease):
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with DatabaseMessageBus(url, lease_seconds=float(lease)) as bus:
        print("ready", flush=True)
        async for delivery in await bus.subscribe("orders", group="shop", prefetch=20):
            message = decode(delivery.wire)
            line = [message.event_id, message.order_key, message.payload, os.getpid()]
            os.write(file, json.dumps(line).encode() + b"\\n")
            print("took", flush=True)
            await asyncio.sleep(0.002)
            await delivery.ack()
    await bus.storage.close()

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def worker(url: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that consumes until it is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WORKER,
        url,
        str(path),
        str(LEASE),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def lines(process: asyncio.subprocess.Process, count: int) -> None:
    """Return once the process has said *count* lines more."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        for _ in range(count):
            assert await process.stdout.readline()


def taken(path: Path) -> list[tuple[str, str, int, int]]:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)
async def test_a_member_is_killed(database: Database, tmp_path: Path) -> None:
    """Of two processes one is killed with its partitions: nothing lost, each key in order."""
    path = tmp_path / "taken"
    sent = [message("orders", key=f"k{n % KEYS}", payload=n) for n in range(KEYS * VERSIONS)]
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with (
            DatabaseMessageBus(storage) as bus,
            worker(database.url, path) as doomed,
            worker(database.url, path) as heir,
        ):
            await asyncio.gather(lines(doomed, 1), lines(heir, 1))
            for start in range(0, len(sent), 100):
                assert not any(await bus.publish_many(sent[start : start + 100]))
            await asyncio.gather(lines(doomed, 60), lines(heir, 60))
            doomed.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            await doomed.wait()
            missing = {m.event_id for m in sent}
            while missing:
                await lines(heir, 1)
                missing -= {line[0] for line in taken(path)}
            elapsed = time.monotonic() - killed
    firsts: dict[str, dict[int, None]] = defaultdict(dict)
    for _, key, payload, _ in taken(path):
        firsts[key].setdefault(payload)
    assert by_key(sent) == {key: list(payloads) for key, payloads in firsts.items()}
    assert 2 == len({line[3] for line in taken(path)})
    print(f"\n{database.name}: all taken {elapsed:.1f} s after the kill, lease {LEASE:.0f} s")
    # The lease, a heartbeat of a third of it, and time for the work on a busy machine.
    assert elapsed < LEASE + LEASE / 3 + 8


async def test_the_database_is_cut_off(postgres: Database) -> None:
    """During an outage nothing is confirmed or lost; afterwards all goes on by itself."""
    async with (
        SqlAlchemyStorage(postgres.url) as direct,
        Proxy.before(postgres.url) as proxy,
        SqlAlchemyStorage(proxy.url) as storage,
    ):
        await direct.initialize()
        async with DatabaseMessageBus(storage, lease_seconds=2) as bus:
            first, second, third = (message("orders", key="k", payload=n) for n in range(3))
            await bus.publish(first)
            subscription = await bus.subscribe("orders", group="shop")
            async with Reader(subscription, patience_seconds=20) as reader:
                assert [first.event_id] == ids(await reader.messages(1))
                proxy.refuse = True
                proxy.cut()
                (error,) = await bus.publish_many([second])
                assert error is not None
                assert "destination" == error.kind
                with pytest.raises(BusError):
                    await bus.ping()
                async with asyncio.timeout(10):
                    while subscription.is_connected():
                        await asyncio.sleep(0.01)
                proxy.refuse = False
                await bus.publish_many([second, third])
                assert ids([second, third]) == ids(await reader.messages(2))
                assert subscription.is_connected()


tables = MetaData()
effects = Table(
    "effects",
    tables,
    Column("id", Integer, primary_key=True),
    Column("key", String(40), nullable=False),
    Column("version", Integer, nullable=False),
)


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
async def test_hub_without_a_bus(database: Database) -> None:
    """2,000 events over 100 keys reach their handlers once and in order, on the database alone."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            await connection.run_sync(tables.create_all)
        hub = Hub("shop", storage=storage)
        hub.consumer("orders", batch_size=50)

        @hub.on("orders", "OrderChanged")
        async def note(event: MessageEnvelope, uow: Any) -> None:
            await uow.session.execute(insert(effects).values(**event.payload))

        async with hub.running():
            for version in range(20):
                async with hub.unit_of_work() as uow:
                    for number in range(100):
                        key = f"k{number}"
                        await uow.outbox.add(
                            "orders",
                            {"key": key, "version": version},
                            event_type="OrderChanged",
                            key=key,
                        )
                    await uow.commit()
            await hub.drain(seconds=60)
            assert isinstance(hub.bus, DatabaseMessageBus)
        async with storage.engine.connect() as connection:
            rows = (await connection.execute(select(effects).order_by(effects.c.id))).all()
    by: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        by[row.key].append(row.version)
    assert {f"k{number}": list(range(20)) for number in range(100)} == by
