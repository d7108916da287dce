"""What may happen to a row of the outbox: the automaton of the model, and of real histories."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEW, PUBLISHING, SENT, FAILED, DEAD = "NEW", "PUBLISHING", "SENT", "FAILED", "DEAD"
PENDING = frozenset({NEW, PUBLISHING, FAILED})

#: From what to what, and by what; None is a row that does not exist.
MOVES: Mapping[tuple[str | None, str | None], str] = {
    (None, NEW): "a commit",
    (NEW, PUBLISHING): "an attempt that must be seen",
    (FAILED, PUBLISHING): "the next attempt",
    (PUBLISHING, PUBLISHING): "an attempt that may kill the process is counted",
    (NEW, SENT): "an acknowledgement",
    (PUBLISHING, SENT): "an acknowledgement",
    (FAILED, SENT): "an acknowledgement that comes late",
    (DEAD, SENT): "an acknowledgement that comes late",
    (NEW, FAILED): "a rejection",
    (PUBLISHING, FAILED): "a rejection, or an attempt taken back",
    (FAILED, FAILED): "a rejection",
    (NEW, DEAD): "a permanent rejection",
    (PUBLISHING, DEAD): "the last rejection",
    (FAILED, DEAD): "the last rejection",
    (DEAD, NEW): "a requeue by an operator",
    (SENT, NEW): "a replay by an operator",
    (SENT, None): "the clean-up",
    (DEAD, None): "an operator drops it",
}


def fault(before: str | None, after: str | None, attempts: int, then: int) -> str | None:
    """Say what is wrong with a move, and with the *attempts* that became *then*."""
    if (before, after) not in MOVES:
        return f"{before} -> {after} is no move"
    if after == NEW:
        return None if then == 0 else f"{before} -> {after} keeps {then} attempts"
    if after is None or attempts <= then <= attempts + 1:
        return None
    if (before, after) == (PUBLISHING, FAILED) and then == attempts - 1:
        return None  # it was counted in case the process died of it
    return f"{before} -> {after} makes {then} attempts of {attempts}"


@dataclass(slots=True)
class Replay:
    """What a history had in it."""

    rows: int = 0
    moves: int = 0
    violations: list[str] = field(default_factory=list)


def replay(folder: Path) -> Replay:
    """Check every move of every row in the folder of a chaos run."""
    state = json.loads((folder / "state.json").read_text())
    return retrace(state.get("transitions", ()))


def retrace(transitions: Iterable[Mapping[str, Any]]) -> Replay:
    """Check moves, which stand in the order in which they happened to each row."""
    result = Replay()
    histories: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for move in transitions:
        histories[move["id"]].append(move)
    for name, moves in histories.items():
        result.rows += 1
        status: str | None = None
        attempts, epoch = 0, -1
        for move in moves:
            result.moves += 1
            before, after, then = move["from"], move["to"], move["attempts"] or 0
            if before != status:
                result.violations.append(f"{name}: was {status}, then {before} -> {after}")
            wrong = fault(before, after, attempts, then)
            if wrong is not None:
                result.violations.append(f"{name}: {wrong}")
            if after in (FAILED, DEAD) and move.get("epoch") is not None:
                if move["epoch"] < epoch:
                    text = f"{before} -> {after} under epoch {move['epoch']} after {epoch}"
                    result.violations.append(f"{name}: {text}")
                epoch = max(epoch, move["epoch"])
            status, attempts = after, then
    return result
