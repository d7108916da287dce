"""What a run was: messages, faults, duplicates, and how long everybody needed to recover."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.chaos.checker_run import Row, Run
from tests.chaos.checker_states import allowance, duplicates


def figures(run: Run, found: Mapping[str, int]) -> dict[str, Any]:
    """Return all figures of a run as JSON; *found* are the violations by invariant."""
    wire, crashes = run.state.get("wire") or {}, run.state.get("crashes") or 0
    again = duplicates(run.state)
    sent = sum(wire.values())
    requests = run.rows("idempotency")
    return {
        "config": dict(run.config),
        "messages": len(run.ledger),
        "effects": len(run.effects),
        "groups": sorted(run.groups),
        "violations": dict(found),
        "lost": found["No loss"],
        "ghosts": found["No ghost"],
        "double_effects": found["Effects exactly once"],
        "out_of_order": found["Order"],
        "faults": dict(sorted(Counter(line.entry["kind"] for line in run.faults).items())),
        "recovery_seconds": _recovery(run),
        "crashes": crashes,
        "wire_duplicates": again,
        "wire_duplicates_percent": round(100 * again / sent, 2) if sent else 0.0,
        "duplicates_per_crash": round(again / crashes, 2) if crashes else None,
        "duplicates_allowed": allowance(run.state),
        "unknown_outcomes": run.state.get("unknown_outcomes") or 0,
        "dead": _by_reason(row for row in run.outbox.values() if row["status"] == "DEAD"),
        "parked": _by_reason(run.rows("parked")),
        "idempotency_keys": len(requests),
        "idempotency_answers": sum(len(row["answers"]) for row in requests),
        "transitions": len(run.rows("transitions")),
        "quiescent_after_seconds": run.state.get("quiescent_after"),
        "bound_seconds": run.state.get("bound"),
        "history_lines": len(run.history),
        "torn_lines": run.torn,
    }


def _by_reason(rows: Iterable[Row]) -> dict[str, int]:
    reasons = (str(row.get("reason") or "no reason").partition(":")[0][:60] for row in rows)
    return dict(sorted(Counter(reasons).items()))


def _recovery(run: Run) -> dict[str, dict[str, Any]]:
    times: dict[str, list[float]] = defaultdict(list)
    for line in run.faults:
        if line.entry.get("recovered") is not None:
            times[line.entry["kind"]].append(float(line.entry["recovered"]))
    return {
        kind: {
            "count": len(found),
            "p50": quantile(found, 0.5),
            "p95": quantile(found, 0.95),
            "max": round(max(found), 2),
        }
        for kind, found in sorted(times.items())
    }


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that is not below *part* of all."""
    return round(sorted(values)[max(0, math.ceil(part * len(values)) - 1)], 2)
