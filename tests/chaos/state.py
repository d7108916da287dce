"""What a run left behind, as `state.json` for the checker."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semel import InboxRecord, OutboxRecord
from semel.sqlalchemy.tables import IdempotencyRecord, OutboxLease
from tests.chaos import facts
from tests.chaos.clients import Clients
from tests.chaos.plan import (
    ACCOUNTS,
    BATCH,
    CONCURRENCY,
    GROUPS,
    INITIAL,
    TENANTS,
    Plan,
    read_history,
)
from tests.chaos.storages import Storages
from tests.chaos.tables import (
    Account,
    Committed,
    Effect,
    Execution,
    Takeover,
    Transition,
)


async def collect(
    plan: Plan,
    storages: Storages,
    clients: Clients,
    *,
    quiescent_after: float | None,
    bound: float,
    operated: int,
) -> dict[str, Any]:
    """Return the state; call it when all processes have ended."""
    history = read_history(plan.folder)
    wire, unknown = facts.wire(history)
    marks = facts.marks(history)
    ledger = await storages.everywhere(Committed, by=Committed.number)
    effects = await storages.rows(storages.two, Effect, by=Effect.seq)
    outbox = await storages.everywhere(OutboxRecord, by=OutboxRecord.sequence)
    inbox = await storages.rows(storages.two, InboxRecord, by=InboxRecord.message_id)
    accounts = await storages.rows(storages.one, Account.id, Account.cents, by=Account.id)
    changes = await storages.everywhere(Transition, by=Transition.number)
    taken = {
        (row.owner, row.until[:19])  # to the second: each row has a time of its own
        for row in await storages.everywhere(Takeover.owner, Takeover.until, by=Takeover.number)
    }
    return {
        "config": {
            "database": plan.database,
            "bus": plan.bus,
            "seed": plan.seed,
            "minutes": plan.minutes,
            "commit": _commit(),
            "groups": GROUPS,
        },
        "ledger": [
            _pick(row, "id", "tenant", "key", "version", "sha256", "tx", "t") for row in ledger
        ],
        "effects": [
            {"group": row.grp, **_pick(row, "tenant", "id", "key", "version", "sha256", "seq", "t")}
            for row in effects
        ],
        "outbox": [
            {
                "id": row.id,
                "topic": row.topic,
                "status": row.status,
                "attempts": row.retry_count,
                "reason": row.error_message,
            }
            for row in outbox
        ],
        "parked": [
            {"group": row.consumer_name, "id": row.message_id, "reason": row.reason}
            for row in inbox
            if row.status in ("DEAD", "PARKED")
        ],
        "balances": {row.id: row.cents for row in accounts},
        "initial_total": len(TENANTS) * ACCOUNTS * INITIAL,
        "idempotency": await _idempotency(storages, clients),
        "transitions": [
            {
                "id": row.id,
                "from": row.old,
                "to": row.new,
                "attempts": row.attempts,
                "epoch": row.epoch,
                "stale": _is_stale(row, marks),
            }
            for row in changes
        ],
        "leases_live": await _leases(storages),
        "claims_in_flight": await _claims(storages, inbox, outbox),
        "wire": wire,
        "crashes": len(taken),
        "inflight_window": BATCH * CONCURRENCY,
        "unknown_outcomes": unknown + operated,
        "resources": facts.resources(history),
        "quiescent_after": quiescent_after,
        "bound": bound,
    }


def _pick(row: Any, *names: str) -> dict[str, Any]:
    return {name: row._mapping[name] for name in names}


def _is_stale(row: Any, marks: Mapping[tuple[str, int], set[int]]) -> bool:
    """Whether the writer's epoch was none that the lease had at that moment."""
    believed = marks.get((row.id, row.attempts), set())
    return row.new in ("FAILED", "DEAD") and bool(believed) and row.epoch not in believed


async def _idempotency(storages: Storages, clients: Clients) -> list[dict[str, Any]]:
    executed: Mapping[tuple[str, str], list[str]] = defaultdict(list)
    columns = (Execution.tenant, Execution.key, Execution.body)
    for row in await storages.rows(storages.one, *columns, by=Execution.number):
        executed[row.tenant, row.key].append(row.body)
    found = []
    for tenant, key in clients.bodies.keys() | executed.keys():
        bodies = executed[tenant, key]
        answers = clients.answers.get((tenant, key), [])
        foreign = sum(status == 201 and body not in bodies for status, _, body in answers)
        found.append(
            {
                "key": key,
                "tenant": tenant,
                "executions": len(bodies),
                "answers": [[status, sha] for status, sha, _ in answers],
                "conflicts_executed": max(0, len(set(bodies)) - 1) + foreign,
            }
        )
    return found


async def _leases(storages: Storages) -> int:
    now = datetime.now(UTC)
    columns = (OutboxLease.owner, OutboxLease.expires_at)
    rows = await storages.everywhere(*columns, by=OutboxLease.partition_no)
    return sum(row.owner is not None and row.expires_at > now for row in rows)


async def _claims(storages: Storages, inbox: list[Any], outbox: list[Any]) -> int:
    now = datetime.now(UTC)
    held = await storages.rows(
        storages.one,
        *(IdempotencyRecord.state, IdempotencyRecord.locked_until),
        by=IdempotencyRecord.key_hash,
    )
    started = sum(row.state == "STARTED" and bool(row.locked_until > now) for row in held)
    begun = sum(row.status == "RECEIVED" for row in inbox)
    return int(started + begun + sum(row.status in ("PUBLISHING", "FAILED") for row in outbox))


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def write(folder: Path, state: dict[str, Any], faults: list[dict[str, Any]]) -> None:
    """Write `state.json`, and `faults.jsonl` with the time that each took to get over."""
    when = {row["id"]: 0.0 for row in state["ledger"]}
    for row in state["effects"]:
        when[row["id"]] = max(when.get(row["id"], 0.0), row["t"])
    odd = {row["id"] for row in state["parked"]} | {
        row["id"] for row in state["transitions"] if "DEAD" in (row["from"], row["to"])
    }
    with (folder / "faults.jsonl").open("w") as out:
        for fault in faults:
            began, ended = fault["t"], fault["t"] + fault["duration"]
            felt = [
                when[row["id"]] - max(began, row["t"])
                for row in state["ledger"]
                if began - 1 <= row["t"] <= ended and row["id"] not in odd
            ]
            recovered = round(max(felt), 3) if felt else None
            out.write(json.dumps({**fault, "recovered": recovered}) + "\n")
    (folder / "state.json").write_text(json.dumps(state, default=str))
