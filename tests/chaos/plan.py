"""What a run is made of: names, settings, and one line of its history."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEASE = 3.0
BATCH, CONCURRENCY = 20, 2
GROUPS = ("books", "audit")
TENANTS = ("north", "south")
TOPICS = ("entries", "transfers", "receipts")
ACCOUNTS, INITIAL = 6, 100_000
KEYS = 12
#: Keys of their own for what is refused, fails for ever, or has no handler.
ODD = {"Refused": "big", "Poison": "poison", "Unheard": "unknown"}
#: While this file is there, what is `Refused` is refused by the bus, and `Poison` fails.
TROUBLE = "trouble"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run."""

    database: str
    bus: str
    seed: int
    minutes: float
    folder: Path
    own: bool = True  # a database server of its own, which may be killed


@dataclass(frozen=True, kw_only=True)
class Post:
    """What a child process is told."""

    name: str
    proc: str
    role: str
    folder: Path
    db1: str = ""
    db2: str = ""
    bus: str = ""
    bus_options: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    seed: int = 0
    clock_offset: float = 0.0
    clock_speed: float = 1.0


class History:
    """Writes `history-<name>.jsonl`, a line at a time, so that SIGKILL loses none."""

    def __init__(self, folder: Path, name: str, proc: str) -> None:
        self._proc = proc
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / f"history-{name}.jsonl", flags, 0o644)

    def write(self, kind: str, f: str, key: str = "", value: Any = None) -> None:
        line = {
            "t": time.monotonic(),
            "proc": self._proc,
            "type": kind,
            "f": f,
            "key": key,
            "value": value,
        }
        with suppress(OSError):  # the disk is full: that is the test
            os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """All lines of all processes, in the order of time; a torn last line is left out."""
    lines = []
    for path in folder.glob("history-*.jsonl"):
        for text in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
    return sorted(lines, key=lambda line: float(line["t"]))
