"""A workload across real processes and a real broker, and the books that it must balance."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import func, select

from semel import OutboxStatus, SqlAlchemyStorage
from tests.scenarios.broker_worker import Base, Effect, make_bus

ROOT = Path(__file__).parents[2]
GROUPS = ("orders", "audit")
STAFF = (
    *(("projector", "relay"), ("projector", "relay")),
    *(("consumer", GROUPS[0]), ("consumer", GROUPS[0]), ("consumer", GROUPS[1])),
)


@dataclass
class Workload:
    """Events over many keys, written by transactions; each group appends what it handles."""

    storage: SqlAlchemyStorage
    bus_url: str
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    keys: int = 100
    seed: int = 1
    attempts: int = 50
    poison: str | None = None  # a key whose events kill whoever handles them
    topic: str = field(default_factory=lambda: f"t{uuid4().hex[:12]}")
    versions: dict[str, int] = field(default_factory=dict)
    workers: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    killed: int = 0
    _count: int = 0

    async def prepare(self) -> None:
        """Create tables and, where the broker wants that, the topic; register the groups."""
        await self.storage.initialize()
        async with self.storage.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        bus: Any = make_bus(self.bus_url, self.storage, self.options)
        async with bus:
            if hasattr(bus, "declare"):
                await bus.declare(self.topic, partitions=8)
            for group in GROUPS:
                await (await bus.subscribe(self.topic, group=group)).close()

    async def write(self, events: int, *, per_transaction: int = 20, pause: float = 0.0) -> None:
        """Commit *events* events; a tenth as many are rolled back on the way."""
        chance = random.Random(self.seed)
        written = 0
        while written < events:
            undone = chance.random() < 0.1
            versions = dict(self.versions)
            async with self.storage.unit_of_work() as uow:
                for _ in range(min(per_transaction, events - written)):
                    key = f"k{chance.randrange(self.keys)}"
                    versions[key] = versions.get(key, 0) + 1
                    payload = {"key": key, "version": -1 if undone else versions[key]}
                    await uow.outbox.add(self.topic, payload, event_type="Appended", key=key)
                if undone:
                    continue
                await uow.commit()
            written += sum(versions.values()) - sum(self.versions.values())
            self.versions = versions
            if pause:
                await asyncio.sleep(pause)

    async def hire(self, role: str, group: str) -> str:
        """Start a process."""
        self._count += 1
        name = f"{role}-{group}-{self._count}"
        settings = {
            "role": role,
            "group": group,
            "bus": self.bus_url,
            "options": self.options,
            "database": self.storage.engine.url.render_as_string(hide_password=False),
            "topic": self.topic,
            "attempts": self.attempts,
            "poison": self.poison,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.workers[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.scenarios.broker_worker",
                json.dumps(settings),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
                stdout=log,
                stderr=log,
            )
        return name

    async def fire(self, name: str, number: signal.Signals) -> None:
        """End a process, politely or not, and wait for its end."""
        process = self.workers.pop(name)
        process.send_signal(number)
        self.killed += number == signal.SIGKILL
        async with asyncio.timeout(40):
            await process.wait()

    async def replace(self, name: str, number: signal.Signals) -> None:
        """Let another process take the place of this one."""
        role, group, _ = name.split("-")
        await self.fire(name, number)
        await self.hire(role, group)

    @asynccontextmanager
    async def staff(self, *posts: tuple[str, str]) -> AsyncIterator[None]:
        """Two projectors, two consumers of one group, one of another, unless told."""
        for role, group in posts or STAFF:
            await self.hire(role, group)
        try:
            yield
        finally:
            for process in self.workers.values():
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def count_effects(self) -> int:
        """Return how many effects the groups have had."""
        async with self.storage.engine.connect() as connection:
            return await connection.scalar(select(func.count()).select_from(Effect)) or 0

    async def settle(self, *, seconds: float) -> None:
        """Wait until every group has handled everything, or tell what is missing."""
        expected = sum(self.versions.values()) * len(GROUPS)
        done = 0
        try:
            async with asyncio.timeout(seconds):
                while (done := await self.count_effects()) < expected:
                    await asyncio.sleep(0.2)
        except TimeoutError:
            stats = await self.storage.outbox.stats()
            logs = "\n".join(
                f"{path.name}: {path.read_text()[-1500:]}" for path in self.folder.glob("*.log")
            )
            raise AssertionError(
                f"{done} of {expected} effects after {seconds} s; outbox {stats.counts}\n{logs}"
            ) from None

    async def check(self) -> None:
        """Nothing lost, no ghost, nothing twice, each key in order, nothing DEAD."""
        expected = {key: list(range(1, last + 1)) for key, last in self.versions.items()}
        async with self.storage.engine.connect() as connection:
            rows = await connection.execute(
                select(Effect.consumer, Effect.key, Effect.version).order_by(Effect.number)
            )
            effects: dict[str, dict[str, list[int]]] = {group: {} for group in GROUPS}
            for consumer, key, version in rows:
                effects[consumer].setdefault(key, []).append(version)
        for group in GROUPS:
            assert expected == effects[group], group
        stats = await self.storage.outbox.stats()
        assert 0 == stats.counts[OutboxStatus.DEAD]


async def services(*arguments: str) -> None:
    """Run `scripts/services` on the servers that it started."""
    given = [name for name in os.environ if name.startswith("SEMEL_TEST_")]
    done = await asyncio.to_thread(
        subprocess.run,
        [str(ROOT / "scripts/services"), *arguments],
        env={name: value for name, value in os.environ.items() if name not in given},
        check=False,
        capture_output=True,
        text=True,
    )
    assert 0 == done.returncode, done.stderr


async def every(seconds: float, times: int, action: Callable[[], Awaitable[None]]) -> None:
    """Do something again and again."""
    for _ in range(times):
        await asyncio.sleep(seconds)
        await action()
