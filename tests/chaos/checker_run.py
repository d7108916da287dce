"""A chaos run's folder, read back: what was committed, what took effect, what happened between."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_LINES_SHOWN = 8
_FAULTS_SHOWN = 2

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a history, and where it stands."""

    place: str
    text: str
    entry: Row

    @property
    def at(self) -> float:
        return float(self.entry.get("t", 0.0))


class Run:
    """One run's folder.

    The ledger was written in the business transactions: it alone says what was committed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: Row = json.loads((folder / "state.json").read_text())
        self.torn = 0
        self.history = self._read(sorted(folder.glob("history-*.jsonl")))
        self.faults = self._read([folder / "faults.jsonl"])
        self.config: Row = self.state.get("config") or {}

    def _read(self, paths: Iterable[Path]) -> list[Line]:
        """Return the lines of all files by time; a process that was killed may tear its last."""
        lines = []
        for path in paths:
            if not path.exists():
                continue
            texts = path.read_text(errors="replace").splitlines()
            for number, text in enumerate(texts, 1):
                try:
                    entry = json.loads(text)
                except ValueError:
                    self.torn += 1
                    continue
                lines.append(Line(f"{path.name}:{number}", text, entry))
        return sorted(lines, key=lambda line: line.at)

    def rows(self, name: str) -> Sequence[Row]:
        return self.state.get(name) or []

    @cached_property
    def ledger(self) -> dict[tuple[str, str], Row]:
        return {(row["tenant"], row["id"]): row for row in self.rows("ledger")}

    @cached_property
    def committed_ids(self) -> set[str]:
        return {row["id"] for row in self.rows("ledger")}

    @cached_property
    def outbox(self) -> dict[str, Row]:
        return {row["id"]: row for row in self.rows("outbox")}

    @cached_property
    def stored_ids(self) -> set[str]:
        """Return the ids of all rows that ever were in the outbox, cleaned up or not."""
        return set(self.outbox) | {row["id"] for row in self.rows("transitions")}

    @cached_property
    def effects(self) -> list[Row]:
        return sorted(self.rows("effects"), key=lambda row: row["seq"])

    @cached_property
    def groups(self) -> set[str]:
        named = {row["group"] for name in ("effects", "parked") for row in self.rows(name)}
        return named | set(self.config.get("groups") or ())

    def subscribers(self, row: Row) -> Iterable[str]:
        """Return the groups that a committed event is for."""
        return sorted(self.groups if row.get("groups") is None else row["groups"])

    @cached_property
    def keys(self) -> dict[tuple[str, str], list[Row]]:
        """Return the committed events of each tenant's key, in order of their versions."""
        found: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self.rows("ledger"):
            if row.get("key") is not None:
                found[row["tenant"], row["key"]].append(row)
        return {key: sorted(rows, key=lambda row: row["version"]) for key, rows in found.items()}

    @cached_property
    def parked(self) -> dict[tuple[str, str], str | None]:
        return {(row["group"], row["id"]): row.get("reason") for row in self.rows("parked")}

    @cached_property
    def repaired(self) -> set[str]:
        """Return ids that were DEAD once, or that an operator moved: no order is promised there."""
        dead = {row["id"] for row in self.rows("transitions") if row.get("to") == "DEAD"}
        return dead | self.named("requeue") | self.named("release")

    def named(self, verb: str) -> set[str]:
        return {str(line.entry.get("key")) for line in self.history if line.entry.get("f") == verb}

    def status(self, event_id: str) -> str:
        return str(self.outbox.get(event_id, {}).get("status", "not in the outbox"))

    def around(self, *names: str | None) -> list[str]:
        """Return the lines that mention one of the names, and the faults just before them."""
        wanted = [json.dumps(name) for name in names if name]
        found = [line for line in self.history if any(name in line.text for name in wanted)]
        found = found[-_LINES_SHOWN:]
        before = [fault for fault in self.faults if found and fault.at <= found[-1].at]
        shown = sorted([*found, *before[-_FAULTS_SHOWN:]], key=lambda line: line.at)
        return [f"{line.place} {line.text}" for line in shown]
