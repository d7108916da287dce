"""A run's folder made by hand: clean as it comes, for tests to doctor."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GROUPS = ("books", "audit")
TENANTS = ("north", "south")


def event(tenant: str, key: str | None, version: int) -> dict[str, Any]:
    name = f"{tenant}-{key}-{version}"
    row = {"id": name, "tenant": tenant, "key": key, "version": version}
    return row | {"sha256": f"digest of {name}", "tx": 100 + version}


def effect(row: dict[str, Any], group: str, seq: int) -> dict[str, Any]:
    kept = {name: row[name] for name in ("tenant", "id", "key", "version", "sha256")}
    return {"group": group, "seq": seq} | kept


@dataclass(slots=True)
class Folder:
    """What a run leaves; `write` makes the files of it."""

    state: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def find(self, name: str, event_id: str, **more: Any) -> dict[str, Any]:
        """Return the row of a table that has this id."""
        wanted = {"id": event_id} | more
        [row, *_] = [row for row in self.state[name] if wanted.items() <= row.items()]
        return row

    def drop(self, name: str, event_id: str) -> None:
        self.state[name] = [row for row in self.state[name] if row["id"] != event_id]

    def write(self, folder: Path) -> Path:
        (folder / "state.json").write_text(json.dumps(self.state))
        _write(folder / "history-relay-1.jsonl", self.history)
        _write(folder / "faults.jsonl", self.faults)
        return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def clean_folder() -> Folder:
    """Two tenants with two keys of three versions; one event DEAD, one parked in a group."""
    ordinary = [
        event(tenant, key, version)
        for version in (1, 2, 3)
        for tenant in TENANTS
        for key in ("k1", "k2")
    ]
    dead, parked, keyless = event("north", "big", 1), event("south", "odd", 1), event(*_KEYLESS)
    ledger = [*ordinary, dead, parked, keyless]
    there = [*ordinary, keyless]
    effects = [effect(row, group, 0) for row in there for group in GROUPS]
    effects.append(effect(parked, "audit", 0))
    for seq, row in enumerate(effects, 1):
        row["seq"] = seq
    outbox = [{"id": row["id"], "status": "SENT", "attempts": 0, "reason": None} for row in ledger]
    outbox[len(ordinary)] |= {"status": "DEAD", "attempts": 1, "reason": "TooLarge: 300 kB"}
    sent = [row for row in ledger if row is not dead]
    return Folder(
        state={
            "ledger": ledger,
            "effects": effects,
            "outbox": [row | {"topic": "bank"} for row in outbox],
            "parked": [{"group": "books", "id": parked["id"], "reason": "unknown type"}],
            "balances": {"alice": 700, "bob": 300},
            "initial_total": 1000,
            "idempotency": [
                {
                    "key": "pay-1",
                    "tenant": "north",
                    "executions": 1,
                    "answers": [[200, "aa"], [409, "bb"], [422, "cc"], [200, "aa"]],
                    "conflicts_executed": 0,
                }
            ],
            "transitions": [
                *_life(sent[0]["id"], None, "NEW", "PUBLISHING", "FAILED", "PUBLISHING", "SENT"),
                *_life(dead["id"], None, "NEW", "DEAD"),
            ],
            "leases_live": 0,
            "claims_in_flight": 0,
            "wire": {row["id"]: 1 for row in sent} | {sent[0]["id"]: 2},
            "crashes": 2,
            "inflight_window": 10,
            "unknown_outcomes": 0,
            "resources": {"relay-1": {"fds": [20, 24], "tasks": [9, 9], "rss": [2**26, 2**26]}},
            "quiescent_after": 3.5,
            "bound": 30.0,
            "config": {
                "database": "sqlite",
                "bus": "database",
                "seed": 7,
                "minutes": 1,
                "commit": "abc",
                "groups": list(GROUPS),
            },
        },
        history=[
            {
                "t": float(number),
                "proc": "relay-1#1",
                "type": "invoke",
                "f": "publish",
                "key": "",
                "value": {"ids": [row["id"]]},
            }
            for number, row in enumerate([sent[0], *sent])
        ],
        faults=[
            {"t": 0.5, "kind": "kill relay", "target": "relay-1#1", "recovered": 2.0},
            {"t": 0.7, "kind": "kill relay", "target": "relay-2#1", "recovered": 4.0},
            {"t": 0.8, "kind": "cut", "target": "broker", "recovered": None},
        ],
    )


_KEYLESS = ("south", None, 1)


def _life(event_id: str, *statuses: str | None) -> list[dict[str, Any]]:
    """Return the transitions of a row; each end of an attempt counts it."""
    rows, attempts = [], 0
    for old, new in itertools.pairwise(statuses):
        attempts += new in ("FAILED", "DEAD")
        rows.append({"id": event_id, "from": old, "to": new, "attempts": attempts, "epoch": 1})
    return rows
