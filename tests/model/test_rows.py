"""Histories of rows are checked against the model's automaton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.rows import MOVES, replay, retrace

# From, to, attempts, epoch; of one row.
GOOD: list[list[tuple[Any, ...]]] = [
    [(None, "NEW", 0, None), ("NEW", "SENT", 0, 1), ("SENT", None, 0, None)],
    [
        (None, "NEW", 0, None),
        ("NEW", "FAILED", 1, 1),
        ("FAILED", "PUBLISHING", 1, 2),
        ("PUBLISHING", "PUBLISHING", 2, 2),
        ("PUBLISHING", "FAILED", 1, 2),
        ("FAILED", "DEAD", 2, 2),
        ("DEAD", "NEW", 0, 2),
        ("NEW", "SENT", 0, 3),
        ("SENT", "NEW", 0, 3),
    ],
    [(None, "NEW", 0, None), ("NEW", "DEAD", 1, 1), ("DEAD", "SENT", 1, 1)],
]
BAD = [
    ([(None, "SENT", 0, None)], "None -> SENT is no move"),
    ([(None, "NEW", 0, None), ("NEW", None, 0, None)], "NEW -> None is no move"),
    (
        [(None, "NEW", 0, None), ("NEW", "SENT", 0, 1), ("SENT", "PUBLISHING", 0, 1)],
        "SENT -> PUBLISHING is no move",
    ),
    ([(None, "NEW", 0, None), ("FAILED", "SENT", 0, 1)], "was NEW, then FAILED -> SENT"),
    ([(None, "NEW", 0, None), ("NEW", "FAILED", 2, 1)], "makes 2 attempts of 0"),
    (
        [(None, "NEW", 0, None), ("NEW", "FAILED", 1, 2), ("FAILED", "DEAD", 2, 1)],
        "FAILED -> DEAD under epoch 1 after 2",
    ),
    (
        [(None, "NEW", 0, None), ("NEW", "DEAD", 1, 1), ("DEAD", "NEW", 1, 1)],
        "DEAD -> NEW keeps 1 attempts",
    ),
]


def history(name: str, moves: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    names = ("from", "to", "attempts", "epoch")
    return [{"id": name, **dict(zip(names, move, strict=True))} for move in moves]


def test_what_happens_to_rows(tmp_path: Path) -> None:
    """Rows are told apart, however their moves are mixed."""
    histories = [history(str(number), moves) for number, moves in enumerate(GOOD)]
    mixed = [moves[step] for step in range(9) for moves in histories if step < len(moves)]
    (tmp_path / "state.json").write_text(json.dumps({"transitions": mixed}))
    retraced = replay(tmp_path)
    assert [] == retraced.violations
    assert (3, 15) == (retraced.rows, retraced.moves)


@pytest.mark.parametrize(("moves", "text"), BAD)
def test_what_must_not_happen(moves: list[tuple[Any, ...]], text: str) -> None:
    violations = retrace(history("e", moves)).violations
    assert [violation for violation in violations if text in violation]


def test_the_diagram_of_the_architecture_has_the_same_moves() -> None:
    """A status that only one of them knows would be a mistake in the other."""
    from semel.states import OutboxStatus

    names = {name for move in MOVES for name in move if name is not None}
    assert {status.value for status in OutboxStatus} == names
