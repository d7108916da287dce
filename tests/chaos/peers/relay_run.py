"""One workload for any relay: a writer that rolls back at times, two relays that are killed at the
broker, an outage. An ideal consumer takes each id once: what is wrong is the relay's doing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.checker import Report, check
from tests.chaos.peers.broker import outage_of
from tests.chaos.peers.relays import PRODUCERS, SETTINGS, Producer, event
from tests.services import fresh_database

ROOT = Path(__file__).parents[3]
_BOUND = 180.0
_IN_FLIGHT = SETTINGS["batch_size"] * 4


class RelayRun:
    """A run of one relay; the same seed writes, kills and cuts the same way for each of them."""

    def __init__(
        self,
        peer: str,
        folder: Path,
        *,
        seed: int,
        events: int,
        deaths: int,
        outage: float,
        lease_seconds: float = 3.0,
    ) -> None:
        self.peer, self.folder, self.seed = peer, folder, seed
        self.events, self.outage, self.lease = events, outage, lease_seconds
        self._wire = folder / "wire.jsonl"
        self._random = random.Random(seed)
        self._deaths = [
            (point, self._random.randrange(2, 5)) for point in ("before", "half", "after") * deaths
        ]
        self._random.shuffle(self._deaths)
        self._written = 0
        self._versions: Counter[str] = Counter()
        self._faults: list[dict[str, Any]] = []
        self._quiescent: float | None = None

    async def run(self) -> Report:
        """Run it, leave its folder, and check that."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._wire.touch()
        with fresh_database("postgres", self.folder) as database:
            producer = PRODUCERS[self.peer](database.url)
            await producer.prepare()
            try:
                await self._attack(producer, database.url)
                state = await self._state(producer)
            finally:
                await producer.close()
        (self.folder / "state.json").write_text(json.dumps(state))
        lines = "".join(json.dumps(fault) + "\n" for fault in self._recovered())
        (self.folder / "faults.jsonl").write_text(lines)
        return check(self.folder)

    async def _attack(self, producer: Producer, url: str) -> None:
        async with asyncio.TaskGroup() as group:
            relays = [group.create_task(self._keep(url)) for _ in range(2)]
            group.create_task(self._write(producer, until=lambda: all(r.done() for r in relays)))
        async with self._relay(url), self._relay(url):
            await self._cut(producer)
            began = time.monotonic()
            await self._finish(producer, began)
        while await self._waiting(producer) and time.monotonic() - began < _BOUND:
            async with self._relay(url):  # what the others left when they were told to stop
                await self._finish(producer, began)
        if not set(await self._statuses(producer)) - {"SENT", "DEAD"}:
            self._quiescent = round(time.monotonic() - began, 2)

    async def _finish(self, producer: Producer, began: float) -> None:
        while await self._waiting(producer) and time.monotonic() - began < _BOUND:
            await asyncio.sleep(0.1)

    async def _write(self, producer: Producer, *, until: Callable[[], bool]) -> None:
        target = self._written + self.events // 2
        while self._written < target or not until():
            keys = self._random.sample([f"k{n}" for n in range(12)], self._random.randrange(1, 4))
            commit = self._random.random() > 0.1
            events = [event(key, self._versions[key] + 1) for key in keys]
            await producer.write(events, commit=commit)
            if commit:
                self._versions.update(keys)
                self._written += len(keys)
            await asyncio.sleep(0.01)

    async def _cut(self, producer: Producer) -> None:
        """Take the broker away for a while, and go on writing."""
        down, refused = outage_of(self._wire)
        down.touch()
        await self._write(producer, until=refused.exists)
        await asyncio.sleep(self.outage)
        down.unlink()
        self._note("outage of the broker")

    async def _keep(self, url: str) -> None:
        """Run relays one after the other, until all deaths are died."""
        while self._deaths:
            death = self._deaths.pop()
            async with self._relay(url, death) as process:
                await process.wait()
            assert process.returncode == -signal.SIGKILL, f"{self.peer}: {process.returncode}"
            self._note(f"kill -9 {death[0]} publishing")

    def _note(self, kind: str) -> None:
        self._faults.append({"t": time.monotonic(), "kind": kind, "target": self.peer})

    @asynccontextmanager
    async def _relay(
        self, url: str, death: tuple[str, int] | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A relay's process, which finishes its batch and ends after the block."""
        broker = {"seed": self._random.randrange(2**31), "reject": 0.02, "death": death}
        options = {
            "peer": self.peer,
            "url": url,
            "wire": str(self._wire),
            "broker": broker,
            "lease_seconds": self.lease,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.chaos.peers.relays", json.dumps(options)),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        try:
            yield process
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await asyncio.wait_for(process.wait(), _BOUND)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _waiting(self, producer: Producer) -> bool:
        return bool(set(await self._statuses(producer)) & producer.taken_up)

    async def _statuses(self, producer: Producer) -> Counter[str]:
        return Counter(row["status"] for row in await producer.rows())

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._wire.read_text().splitlines()]

    def _recovered(self) -> list[dict[str, Any]]:
        """Say for each fault how long it took until the next message went out."""
        times = [line["t"] for line in self._lines()]
        for fault in self._faults:
            later = [at for at in times if at > fault["t"]]
            fault["recovered"] = round(later[0] - fault["t"], 3) if later else None
        return self._faults

    async def _state(self, producer: Producer) -> Mapping[str, Any]:
        lines = self._lines()
        first: dict[str, dict[str, Any]] = {}
        for line in lines:
            first.setdefault(line["id"], line)
        rows = await producer.rows()
        return {
            "ledger": [
                row | {"tenant": "default", "tx": row["id"]} for row in await producer.ledger()
            ],
            "effects": [
                line | {"group": "books", "seq": n} for n, line in enumerate(first.values())
            ],
            "outbox": [row | {"topic": "list"} for row in rows],
            "leases_live": await producer.leases(),
            "claims_in_flight": sum(row["status"] == "PUBLISHING" for row in rows),
            "wire": Counter(line["id"] for line in lines),
            "crashes": sum(fault["kind"].startswith("kill") for fault in self._faults),
            "inflight_window": _IN_FLIGHT,
            "quiescent_after": self._quiescent,
            "bound": _BOUND,
            "config": {
                "peer": self.peer,
                "database": "postgres",
                "seed": self.seed,
                "groups": ["books"],
                "on_dead": "block" if self.peer == "semel" else "skip",
            },
        }
