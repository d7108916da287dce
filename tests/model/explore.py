"""Breadth first through every state that a protocol can reach."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from time import process_time
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Generic[S]):
    """What may happen, and what must hold.

    *steps* yields what may happen next, with a label. *broken* says what is wrong with a state,
    *stuck* what is wrong with one in which nothing can happen any more.
    """

    start: S
    steps: Callable[[S], Iterable[tuple[str, S]]]
    broken: Callable[[S], str | None]
    stuck: Callable[[S], str | None]


@dataclass(slots=True, kw_only=True)
class Result:
    """How many states there are and, if one is wrong, the shortest way to it."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    seconds: float = 0.0
    violation: str | None = None
    way: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        figures = f"{self.states} states, {self.steps} steps, {self.ends} ends"
        if self.violation is None:
            return f"holds in {figures}"
        return "\n".join(
            [f"{self.violation} (after {figures})", *(f"  {each}" for each in self.way)]
        )


def explore(protocol: Protocol[S], *, limit: int = 20_000_000) -> Result:
    """Visit every state; stop at the first that is wrong, which no other is nearer to."""
    gc.disable()  # millions of tuples, and no cycles among them
    try:
        return _explore(protocol, limit)
    finally:
        gc.enable()


def _explore(protocol: Protocol[S], limit: int) -> Result:
    began, result = process_time(), Result()
    came_from: dict[S, tuple[S, str] | None] = {protocol.start: None}
    waiting = deque([protocol.start])

    def end(violation: str | None, state: S | None = None) -> Result:
        result.states, result.seconds = len(came_from), process_time() - began
        result.violation = violation
        while state is not None and (step := came_from[state]) is not None:
            state, label = step
            result.way.insert(0, label)
        return result

    if (violation := protocol.broken(protocol.start)) is not None:
        return end(violation, protocol.start)
    while waiting:
        state = waiting.popleft()
        moved = False
        for label, following in protocol.steps(state):
            moved = True
            result.steps += 1
            if following in came_from:
                continue
            came_from[following] = (state, label)
            if (violation := protocol.broken(following)) is not None:
                return end(violation, following)
            waiting.append(following)
        if not moved:
            result.ends += 1
            if (violation := protocol.stuck(state)) is not None:
                return end(violation, state)
        if len(came_from) > limit:
            raise RuntimeError(f"more than {limit} states: make the bounds smaller")
    return end(None)
