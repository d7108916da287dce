"""The invariants about rows, requests and processes: legal states, fences, answers, ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.chaos.checker_messages import Finding
from tests.chaos.checker_run import Run

# From ARCHITECTURE.md, "States". None: not there yet, or no more.
_LEGAL: Mapping[str | None, set[str | None]] = {
    None: {"NEW"},
    "NEW": {"PUBLISHING", "SENT", "FAILED", "DEAD"},
    "PUBLISHING": {"SENT", "FAILED", "DEAD"},
    "FAILED": {"PUBLISHING", "SENT", "DEAD"},
    "SENT": {"NEW", None},  # replayed by an operator; cleaned up
    "DEAD": {"NEW", None},  # requeued; dropped
}
# What a process may keep beyond its start: pools fill, caches warm up.
_MORE = {"fds": 32, "tasks": 32, "rss": 96 * 2**20}


def state_machine(run: Run) -> Iterator[Finding]:
    """Rows change as drawn, attempts only rise, and in the end nobody holds anything."""
    attempts: dict[str, int] = {}
    charged: set[str] = set()  # before they were tried, in case the process dies of it
    for row in run.rows("transitions"):
        event_id, old, new = row["id"], row.get("from"), row.get("to")
        if new != old and new not in _LEGAL.get(old, set()):
            yield Finding(f"event {event_id} went from {old} to {new}", (event_id,))
        now, before = row.get("attempts") or 0, attempts.get(event_id, 0)
        begins_anew = new == "NEW" and old in ("SENT", "DEAD")
        refunded = event_id in charged and new == "FAILED" and now == before - 1
        if new is not None and now < before and not (begins_anew or refunded):
            told = f"event {event_id} went from {before} attempts to {now} as it became {new}"
            yield Finding(told, (event_id,))
        attempts[event_id] = now
        if new == "PUBLISHING" and now > before:
            charged.add(event_id)
        elif new != "PUBLISHING":
            charged.discard(event_id)
    for name, told in (("leases_live", "leases"), ("claims_in_flight", "claims in flight")):
        left = run.state.get(name) or 0
        if left:
            yield Finding(f"{left} {told} are left at the end")


def fencing(run: Run) -> Iterator[Finding]:
    """Nobody ends an attempt under a lease that another one has taken.

    SENT is not fenced: whoever writes it has the broker's word that the event is there.
    """
    epochs: dict[str, int] = {}
    for row in run.rows("transitions"):
        event_id, epoch = row["id"], row.get("epoch")
        newest = epochs.get(event_id, 0)
        late = epoch is not None and epoch < newest
        if row.get("to") in ("FAILED", "DEAD") and (late or row.get("stale")):
            told = f"event {event_id} became {row['to']} under epoch {epoch}"
            yield Finding(f"{told}, and its lease was at {newest or 'another'}", (event_id,))
        epochs[event_id] = max(newest, epoch or 0)


def idempotency(run: Run) -> Iterator[Finding]:
    """One execution per key, one answer to all who ask, none for a changed request."""
    for row in run.rows("idempotency"):
        who = f"key {row['key']} (tenant {row['tenant']})"
        answers = [tuple(each) for each in row["answers"] if 200 <= each[0] < 300]
        if row["executions"] > 1:
            yield Finding(f"{who} was executed {row['executions']} times", (row["key"],))
        if answers and not row["executions"]:
            yield Finding(f"{who} was answered {answers[0][0]} and never executed", (row["key"],))
        if len(set(answers)) > 1:
            told = f"{who} got {len(set(answers))} different successful answers"
            yield Finding(told, (row["key"],))
        if row.get("conflicts_executed"):
            told = f"{who} executed {row['conflicts_executed']} requests with another body"
            yield Finding(told, (row["key"],))


def liveness(run: Run) -> Iterator[Finding]:
    """After the last fault everything comes to rest within the bound."""
    after, bound = run.state.get("quiescent_after"), run.state.get("bound")
    if after is None:
        yield Finding(f"the run never came to rest; the bound is {bound} s")
    elif bound is not None and after > bound:
        yield Finding(f"the run came to rest after {after} s; the bound is {bound} s")


def bounded_duplicates(run: Run) -> Iterator[Finding]:
    """An event is sent again only for a crash or an outcome that nobody knows."""
    number, allowed = duplicates(run.state), allowance(run.state)
    if number > allowed:
        crashes, window = run.state.get("crashes") or 0, run.state.get("inflight_window") or 0
        unknown = run.state.get("unknown_outcomes") or 0
        told = f"{crashes} crashes x {window} in flight + {unknown} unknown outcomes"
        yield Finding(f"{number} events were sent again; {told} allow {allowed}")


def duplicates(state: Mapping[str, Any]) -> int:
    return sum(number - 1 for number in (state.get("wire") or {}).values() if number > 1)


def allowance(state: Mapping[str, Any]) -> int:
    crashes, window = state.get("crashes") or 0, state.get("inflight_window") or 0
    return int(crashes * window + (state.get("unknown_outcomes") or 0))


def no_leak(run: Run) -> Iterator[Finding]:
    """Processes end with about the files, tasks and memory that they began with."""
    for proc, kinds in (run.state.get("resources") or {}).items():
        for kind, more in _MORE.items():
            if kind not in kinds:
                continue
            start, end = kinds[kind]
            if end > start + more:
                yield Finding(f"{proc} grew from {start} to {end} {kind}", (proc,))
