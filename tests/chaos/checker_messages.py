"""The invariants about events: none lost, none invented, each once, in order, unharmed, at home."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.checker_run import Row, Run


class Finding(NamedTuple):
    """What is wrong, in a sentence, and the names that lead to it in the history."""

    sentence: str
    names: tuple[str | None, ...] = ()


def _told(row: Row) -> str:
    return f"event {row['id']} (tenant {row['tenant']}, key {row['key']}, version {row['version']})"


def no_loss(run: Run) -> Iterator[Finding]:
    """Every committed event took effect in each of its groups, or is kept with a reason."""
    done = {(row["group"], row["tenant"], row["id"]) for row in run.effects}
    held = _held(run)
    for (tenant, event_id), row in run.ledger.items():
        status = run.status(event_id)
        if event_id in held or (status == "DEAD" and run.outbox[event_id].get("reason")):
            continue
        for group in run.subscribers(row):
            if (group, tenant, event_id) in done or run.parked.get((group, event_id)):
                continue
            how = f"has no effect in group {group}, is not parked, and its outbox row is {status}"
            yield Finding(f"{_told(row)} {how}", (event_id,))


def _held(run: Run) -> set[str]:
    """Return events that wait behind a DEAD one of their key, as the policy asks."""
    held = set()
    if run.config.get("on_dead", "block") == "block":
        for rows in run.keys.values():
            dead = False
            for row in rows:
                status = run.status(row["id"])
                if dead and status == "NEW":
                    held.add(row["id"])
                dead = dead or status == "DEAD"
    return held


def no_ghost(run: Run) -> Iterator[Finding]:
    """Whatever was published, delivered or took effect was committed."""
    known = run.committed_ids | run.stored_ids
    seen: dict[str, str] = {}
    for event_id, row in run.outbox.items():
        topic = row.get("topic")  # a dead letter is written by semel, without a ledger
        if topic and not topic.endswith(".dead") and event_id not in run.committed_ids:
            seen.setdefault(event_id, "is in the outbox")
    for row in run.effects:
        if row["id"] not in run.committed_ids:
            seen.setdefault(row["id"], f"took effect in group {row['group']}")
    for line in run.history:
        if line.entry.get("f") == "deliver" and line.entry["value"]["id"] not in known:
            where = f"was delivered to {line.entry['proc']}"
            seen.setdefault(line.entry["value"]["id"], where)
    for event_id in run.state.get("wire") or {}:
        if event_id not in known:
            seen.setdefault(event_id, "was on the wire")
    for event_id, how in seen.items():
        yield Finding(f"event {event_id} {how} and was never committed", (event_id,))


def effects_once(run: Run) -> Iterator[Finding]:
    """No event took effect twice in a group, and no money came or went."""
    counts = Counter((row["group"], row["tenant"], row["id"]) for row in run.effects)
    for (group, tenant, event_id), number in counts.items():
        if number > 1:
            told = f"event {event_id} (tenant {tenant}) took effect {number} times in group {group}"
            yield Finding(told, (event_id,))
    total, initial = sum((run.state.get("balances") or {}).values()), run.state.get("initial_total")
    if initial is not None and total != initial:
        yield Finding(f"the balances sum to {total}, and began with {initial}")


def order(run: Run) -> Iterator[Finding]:
    """Per key, effects and first publications come in the order of the commits."""
    yield from _effects_in_order(run)
    yield from _dead_overtaken(run)
    yield from _published_in_order(run)


def _effects_in_order(run: Run) -> Iterator[Finding]:
    if run.config.get("ordered") is False:
        return
    latest: dict[tuple[str, str, str], Row] = {}
    seen: set[tuple[str, str, str]] = set()
    for effect in run.effects:
        event_id, group, tenant = effect["id"], effect["group"], effect["tenant"]
        row = run.ledger.get((tenant, event_id))
        again = (group, tenant, event_id) in seen
        seen.add((group, tenant, event_id))
        if row is None or row.get("key") is None or again or event_id in run.repaired:
            continue
        before = latest.get((group, tenant, row["key"]))
        if before is not None and before["version"] > row["version"]:
            told = f"{_told(row)} took effect in group {group} after version {before['version']}"
            yield Finding(told, (event_id, before["id"]))
        else:
            latest[group, tenant, row["key"]] = row


def _dead_overtaken(run: Run) -> Iterator[Finding]:
    """A DEAD event that blocks its key has no successor with an effect."""
    if run.config.get("on_dead", "block") != "block":
        return
    moved = run.named("requeue") | run.named("release")
    done = {(row["tenant"], row["id"]) for row in run.effects}
    for (tenant, _), rows in run.keys.items():
        dead: Row | None = None
        for row in rows:
            if dead is not None and (tenant, row["id"]) in done:
                told = f"{_told(row)} took effect although version {dead['version']} is DEAD"
                yield Finding(f"{told} and blocks the key", (row["id"], dead["id"]))
            if run.status(row["id"]) == "DEAD" and row["id"] not in moved:
                dead = dead or row


def _published_in_order(run: Run) -> Iterator[Finding]:
    rows = {row["id"]: row for row in run.rows("ledger") if row.get("key") is not None}
    latest: dict[tuple[str, str], Row] = {}
    seen: set[str] = set()
    for line in run.history:
        if (line.entry.get("f"), line.entry.get("type")) != ("publish", "invoke"):
            continue
        for event_id in line.entry["value"]["ids"]:
            row = rows.get(event_id)
            if row is None or event_id in seen or event_id in run.repaired:
                continue
            seen.add(event_id)
            key = (row["tenant"], row["key"])
            before = latest.setdefault(key, row)
            if before["version"] > row["version"]:
                told = f"{_told(row)} was first published after version {before['version']}"
                yield Finding(told, (event_id, before["id"]))
            else:
                latest[key] = row


def integrity(run: Run) -> Iterator[Finding]:
    """What took effect is what was committed, byte for byte."""
    wrong: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in run.effects:
        source = run.ledger.get((row["tenant"], row["id"]))
        if source is not None:
            fields = [name for name in ("sha256", "key", "version") if row[name] != source[name]]
            if fields:
                wrong[row["tenant"], row["id"]] += fields
    for (tenant, event_id), fields in wrong.items():
        told = _told(run.ledger[tenant, event_id])
        yield Finding(f"{told} arrived with another {', '.join(sorted(set(fields)))}", (event_id,))


def isolation(run: Run) -> Iterator[Finding]:
    """No tenant sees another one's events."""
    for row in run.effects:
        event_id, tenant = row["id"], row["tenant"]
        if event_id in run.committed_ids and (tenant, event_id) not in run.ledger:
            owners = sorted(owner for owner, name in run.ledger if name == event_id)
            told = f"event {event_id} of tenant {', '.join(owners)} took effect at tenant {tenant}"
            yield Finding(told, (event_id,))
