"""A broker that outlives every process: a file, in which a line is a message that was accepted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semel.envelope import MessageEnvelope
from semel.errors import PublishError


def digest(payload: Any) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def outage_of(wire: Path) -> tuple[Path, Path]:
    """Return two files: while the first is there, nobody can connect; the second: one has tried."""
    return wire.with_suffix(".down"), wire.with_suffix(".refused")


class FileBroker:
    """Publishes to the file, and kills its process in the n-th call where it is told to.

    *death*: ``("before", n)`` any of the batch is written, ``("half", n)`` of it is, or
    ``("after", n)`` all of it is and nobody knows.
    """

    def __init__(
        self,
        wire: Path,
        *,
        seed: int,
        reject: float,
        delay: float = 0.01,
        death: tuple[str, int] | None = None,
    ) -> None:
        self._down, self._refused = outage_of(wire)
        self._file = os.open(wire, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._random = random.Random(seed)
        self._reject, self._delay = reject, delay
        self._point, self._left = death or ("never", 0)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def ping(self) -> None:
        if self._down.exists():
            self._refused.touch()
            raise ConnectionRefusedError("no broker")

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        await self.ping()
        await asyncio.sleep(self._delay)
        self._left -= 1
        self._die("before")
        rejected: dict[str, PublishError] = {}
        results: list[PublishError | None] = []
        for number, message in enumerate(messages):
            if number == (len(messages) + 1) // 2:
                self._die("half")
            key = str(message.key)
            if key not in rejected and self._random.random() < self._reject:
                rejected[key] = PublishError("busy")
            if key not in rejected:
                self._write(message)
            results.append(rejected.get(key))
        os.fsync(self._file)
        self._die("after")
        return results

    def _write(self, message: MessageEnvelope) -> None:
        line = {
            "t": time.monotonic(),
            "id": message.event_id,
            "tenant": message.tenant_id,
            "key": message.key,
            "version": message.payload["version"],
            "sha256": digest(message.payload),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _die(self, point: str) -> None:
        if point == self._point and self._left <= 0:
            os.fsync(self._file)
            os.kill(os.getpid(), signal.SIGKILL)
