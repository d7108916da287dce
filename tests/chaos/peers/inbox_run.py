"""One workload for any inbox: messages that come at least once, handlers that fail at first, and
processes that are killed before, in and after the handler's transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.chaos.checker import Report, check
from tests.chaos.peers.broker import digest
from tests.chaos.peers.install import SAGAZ, installed
from tests.services import fresh_database

ROOT = Path(__file__).parents[3]
_BOUND = 120.0
_EFFECTS = """
CREATE TABLE effect (
    seq BIGSERIAL PRIMARY KEY, grp TEXT, id TEXT, key TEXT, version INT, sha256 TEXT
)
"""


class InboxRun:
    """A run of one inbox; the same seed sends, fails and kills the same way for each of them."""

    def __init__(
        self,
        peer: str,
        folder: Path,
        *,
        seed: int,
        messages: int,
        deaths: int,
        groups: Sequence[str],
    ) -> None:
        self.peer, self.folder, self.seed, self.groups = peer, folder, seed, groups
        self._random = random.Random(seed)
        self._messages = [self._message(f"k{n % 10}", n // 10 + 1) for n in range(messages)]
        self._deaths = [
            (point, self._random.randrange(2, max(3, messages // 20)))
            for point in ("gate", "effect", "commit") * deaths
        ]
        self._faults: list[dict[str, Any]] = []

    def _message(self, key: str, version: int) -> dict[str, Any]:
        event_id = str(uuid.UUID(int=self._random.getrandbits(128)))
        content = {"key": key, "version": version}
        return content | {"id": event_id, "sha256": digest(content)}

    async def run(self) -> Report:
        """Run it, leave its folder, and check that."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(each) + "\n" for each in self._messages)
        (self.folder / "messages.jsonl").write_text(lines)
        with fresh_database("postgres", self.folder) as database:
            url = database.url.replace("+asyncpg", "")
            if self.peer == "semel":
                async with SqlAlchemyStorage(database.url) as storage:
                    await storage.initialize()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(_EFFECTS)
                for group in self.groups:
                    await self._consume(url, group)
                columns = "grp, id, key, version, sha256, seq"
                found = connection.execute(f"SELECT {columns} FROM effect").fetchall()
        names = ("group", "id", "key", "version", "sha256", "seq")
        effects = [dict(zip(names, row, strict=True)) for row in found]
        (self.folder / "state.json").write_text(json.dumps(self._state(effects)))
        faults = "".join(json.dumps(fault) + "\n" for fault in self._faults)
        (self.folder / "faults.jsonl").write_text(faults)
        return check(self.folder)

    async def _consume(self, url: str, group: str) -> None:
        """Run one consumer after the other, until one lives to acknowledge everything."""
        acknowledged = self.folder / f"acknowledged-{group}"
        acknowledged.touch()
        for number, death in enumerate([*self._deaths, None]):
            options = {
                "peer": self.peer,
                "url": url,
                "group": group,
                "messages": str(self.folder / "messages.jsonl"),
                "acknowledged": str(acknowledged),
                "seed": self.seed + number,
                "death": death,
            }
            path = [str(ROOT), *sys.path]
            if self.peer == "sagaz":
                path.insert(0, str(await asyncio.to_thread(installed, SAGAZ)))
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "tests.chaos.peers.inboxes", json.dumps(options)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
                timeout=_BOUND,
                check=False,
            )
            if death is not None and done.returncode == -signal.SIGKILL:
                kind = f"kill -9 at the {death[0]}"
                self._faults.append({"t": float(number), "kind": kind, "target": group})
            else:  # it had fewer effects than the death waits for
                assert done.returncode == 0, f"{self.peer} ended with {done.returncode}"

    def _state(self, effects: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "ledger": [each | {"tenant": "default", "tx": each["id"]} for each in self._messages],
            "effects": [each | {"tenant": "default"} for each in effects],
            "outbox": [{"id": each["id"], "status": "SENT"} for each in self._messages],
            "crashes": len(self._faults),
            "quiescent_after": 0.0,
            "config": {
                "peer": self.peer,
                "database": "postgres",
                "seed": self.seed,
                "groups": list(self.groups),
            },
        }
