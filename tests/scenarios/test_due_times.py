"""What is due goes out when it says, not at the next look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from semel.envelope import MessageEnvelope
from semel.retry import RetryPolicy
from semel.settings import TopicPolicy
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.processes import FileBus, spawn
from tests.scenarios.relaying import (
    ScriptedBus,
    add,
    all_sent,
    each_database,
    eventually,
    projector,
    running,
)
from tests.services import Database

IDLE = {"sleep_busy": 30.0, "sleep_idle": 30.0, "sweep_seconds": 30.0}
EXACT = {"orders": TopicPolicy(retry=RetryPolicy(base_seconds=0.5, jitter=False, factor=1))}


class Timed(ScriptedBus):
    """Remembers when each event was tried."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.times: dict[str, list[float]] = {}

    async def _note(self, messages: Sequence[MessageEnvelope]) -> None:
        for message in messages:
            self.times.setdefault(message.event_id, []).append(time.monotonic())


@each_database
async def test_retry_falls_due_when_it_says(storage: SqlAlchemyStorage):
    """The second attempt comes half a second after the first, although nobody looks for 30 s."""
    bus = Timed()
    bus.faults.reject(lambda _: True, kind="transient", times=1)
    async with running(projector(storage, bus, topics=EXACT, **IDLE)):
        await add(storage, "e1")
        await eventually(lambda: all_sent(storage))

    first, second = bus.times["e1"]
    assert 0.5 <= second - first < 0.6


@each_database
async def test_scheduled_event_goes_out_in_time(storage: SqlAlchemyStorage):
    """An event that is available in a second goes out then, not before and not at the next poll."""
    bus = Timed()
    async with running(projector(storage, bus, **IDLE)) as each:
        await eventually(lambda: each.is_ready)
        due = time.monotonic() + 1.0
        await add(storage, "e1", available_at=datetime.now(UTC) + timedelta(seconds=1))
        await eventually(lambda: all_sent(storage))

    (moment,) = bus.times["e1"]
    assert -0.01 <= moment - due < 0.15


@each_database
async def test_commit_in_the_process_wakes_the_projector(storage: SqlAlchemyStorage):
    """An idle projector does not wait for its next poll."""
    bus = Timed()
    async with running(projector(storage, bus, **IDLE)) as each:
        await eventually(lambda: each.is_ready)
        for number in range(3):
            await add(storage, f"e{number}")
            await eventually(lambda n=number: f"e{n}" in bus.times, seconds=2)


async def test_commit_in_another_process_wakes_the_projector(postgres: Database, tmp_path: Path):
    """R25: on PostgreSQL a projector hears of commits elsewhere."""
    async with SqlAlchemyStorage(postgres.url) as storage:
        await storage.initialize()
        bus = Timed()
        broker = FileBus(tmp_path / "broker")
        async with running(projector(storage, bus, **IDLE)) as each:
            await eventually(lambda: each.is_ready)
            with spawn(postgres.url, broker.path, projects=False, writes=1, keys=1) as writer:
                assert 0 == await writer.ended()
            await eventually(lambda: "e0-0000" in bus.times, seconds=5)
        await broker.close()


@pytest.mark.parametrize("database", ["postgres", "postgres-psycopg"], indirect=True)
async def test_listening_resumes_after_its_connection_was_killed(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    """R25: polling delivers meanwhile, and later commits elsewhere are heard again."""
    monkeypatch.setattr("semel.sqlalchemy.wakeup._RECONNECT_SECONDS", 0.1)
    async with (
        SqlAlchemyStorage(database.url) as storage,
        SqlAlchemyStorage(database.url) as elsewhere,
    ):
        await storage.initialize()
        bus = Timed()
        settings = IDLE | {"sleep_idle": 0.5, "sleep_busy": 0.5}
        async with running(projector(storage, bus, **settings)) as each:
            await eventually(lambda: each.is_ready)
            await eventually(lambda: _listeners(elsewhere, 1))
            async with elsewhere.engine.begin() as connection:
                await connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
                    )
                )
            await add(elsewhere, "e1")
            await eventually(lambda: "e1" in bus.times, seconds=5)
            await eventually(lambda: _listeners(elsewhere, 1))
            await add(elsewhere, "e2")
            await eventually(lambda: "e2" in bus.times, seconds=5)


async def _listeners(storage: SqlAlchemyStorage, number: int) -> bool:
    async with storage.engine.connect() as connection:
        found = await connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        )
    return found == number


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_idle_projector_hardly_asks(storage: SqlAlchemyStorage):
    """R33: with nothing to do the number of fetches is bounded by the pauses."""
    fetches = 0
    fetch = storage.relay.fetch

    async def counted(*args, **kwargs):
        nonlocal fetches
        fetches += 1
        return await fetch(*args, **kwargs)

    storage.relay.fetch = counted
    idle = {"sleep_busy": 0.1, "sleep_idle": 0.4, "sweep_seconds": 30.0}
    async with running(projector(storage, ScriptedBus(), **idle)) as each:
        await eventually(lambda: each.is_ready)
        await asyncio.sleep(2.0)

    assert 1 <= fetches <= 10
