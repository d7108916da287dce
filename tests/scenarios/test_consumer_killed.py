"""A consumer killed with SIGKILL in its handler, or between its commit and its ack."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, select

from semel import MessageEnvelope, SqlAlchemyStorage
from semel.transports.database import DatabaseMessageBus
from tests.scenarios.broker_worker import Base, Effect
from tests.services import Database

ROOT = Path(__file__).parents[2]
_EVENTS = 20


async def start(database: Database, moment: str, log: Path) -> asyncio.subprocess.Process:
    settings = json.dumps({"database": database.url, "moment": moment})
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.scenarios.consumer_worker",
            settings,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdout=output,
            stderr=output,
        )


async def count(storage: SqlAlchemyStorage) -> int:
    async with storage.engine.connect() as connection:
        return await connection.scalar(select(func.count()).select_from(Effect)) or 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize("moment", ["in-handler", "before-ack"])
async def test_consumer_killed(database: Database, moment: str, tmp_path: Path) -> None:
    """C05, O01: another one finishes the work; nothing is lost and nothing takes effect twice."""
    log = tmp_path / "worker.log"
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with storage.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with DatabaseMessageBus(storage, lease_seconds=2) as bus:
            await (await bus.subscribe("orders", group="shop")).close()
            await bus.publish_many(
                [
                    MessageEnvelope(
                        topic="orders",
                        event_type="OrderPlaced",
                        key=f"k{number % 2}",
                        payload={"key": f"k{number % 2}", "version": number},
                    )
                    for number in range(_EVENTS)
                ]
            )
        victim = await start(database, moment, log)
        async with asyncio.timeout(40):
            code = await victim.wait()
        between = await count(storage)
        heir = await start(database, "never", log)
        try:
            async with asyncio.timeout(60):
                while await count(storage) < _EVENTS:
                    await asyncio.sleep(0.05)
        finally:
            heir.send_signal(signal.SIGTERM)
            async with asyncio.timeout(40):
                await heir.wait()
        async with storage.engine.connect() as connection:
            rows = (
                await connection.execute(select(Effect.key, Effect.version).order_by(Effect.number))
            ).all()

    assert -signal.SIGKILL == code, log.read_text()
    assert 0 < between < _EVENTS
    expected = {key: [n for n in range(_EVENTS) if f"k{n % 2}" == key] for key in ("k0", "k1")}
    assert expected == {
        key: [version for found, version in rows if found == key] for key in expected
    }
