"""Idempotency: requests with one key, servers that die, leases that run out at any time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explore import Protocol

_ASKING, _LOOKED, _CLAIMED, _EXECUTED, _APART, _SEALED, _ANSWERED, _GONE, _REFUSED = range(9)
STARTED, COMPLETED = "STARTED", "COMPLETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """How large the world is, what goes wrong in it, and which bugs it has."""

    requests: str = "ooo"  # their bodies
    crashes: int = 1
    failures: int = 0
    expiries: int = 2
    # Bugs
    check_then_act: bool = False
    takeover_without_check: bool = False
    without_token: bool = False
    answer_apart: bool = False
    early_answer: bool = False
    replay_executes: bool = False
    eternal_lease: bool = False
    careless_release: bool = False
    ignored_body: bool = False


class Row(NamedTuple):
    """The row of the key."""

    state: str
    token: int
    body: str
    leased: bool = True
    answer: int = -1


class Request(NamedTuple):
    """How far a request is; `seen` is the row that it has read."""

    at: int = _ASKING
    seen: Row | None = None
    answer: int = -1


class State(NamedTuple):
    """Everything; an answer is named by the request that made it."""

    requests: tuple[Request, ...]
    row: Row | None = None
    effects: tuple[int, ...] = ()
    told: frozenset[int] = frozenset()
    crashes: int = 0
    failures: int = 0
    expiries: int = 0


def idempotency(world: Idempotency) -> Protocol[State]:
    """Return the protocol in *world*: one key."""
    start = State(requests=(Request(),) * len(world.requests))
    return Protocol(
        start=start,
        steps=lambda state: _steps(world, state),
        broken=lambda state: _broken(world, state),
        stuck=_stuck,
    )


def _steps(world: Idempotency, state: State) -> Iterator[tuple[str, State]]:
    row = state.row
    dead = row is not None and state.requests[row.token].at == _GONE
    may_expire = (dead or state.expiries < world.expiries) and not world.eternal_lease
    if row is not None and row.leased and row.state == STARTED and may_expire:
        after = state._replace(row=row._replace(leased=False), expiries=state.expiries + (not dead))
        yield "the lease runs out", after
    for index in range(len(world.requests)):
        yield from Turn(world, state, index).steps()


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of one request; it may have lost its key at any time."""

    world: Idempotency
    state: State
    index: int

    @property
    def own(self) -> Request:
        """How far it is."""
        return self.state.requests[self.index]

    def _do(self, text: str, own: Request, **changes: Any) -> tuple[str, State]:
        others = self.state.requests
        requests = (*others[: self.index], own, *others[self.index + 1 :])
        return f"R{self.index} {text}", self.state._replace(requests=requests, **changes)

    def steps(self) -> Iterator[tuple[str, State]]:
        """Yield what it may do."""
        own, state, world = self.own, self.state, self.world
        if own.at in (_GONE, _ANSWERED, _REFUSED):
            return
        if state.crashes < world.crashes and own.at != _ASKING:
            yield self._do("dies", own._replace(at=_GONE), crashes=state.crashes + 1)
        if own.at == _ASKING:
            yield from self._ask()
        elif own.at == _LOOKED:
            yield from self._take()
        elif own.at == _CLAIMED:
            yield self._do("executes", own._replace(at=_EXECUTED, answer=self.index))
            if state.failures < world.failures:
                yield from self._release()
        elif own.at == _EXECUTED:
            yield from self._seal()
        elif own.at == _APART:
            row = self._completed()
            yield self._do("stores its answer", own._replace(at=_SEALED), row=row)
        elif own.at == _SEALED:
            told = state.told | {own.answer}
            yield self._do("answers", own._replace(at=_ANSWERED), told=told)

    def _ask(self) -> Iterator[tuple[str, State]]:
        """Insert the row if there is none; else read it."""
        own, row, body = self.own, self.state.row, self.world.requests[self.index]
        if row is None:
            if self.world.check_then_act:
                yield self._do("finds no row", own._replace(at=_LOOKED, seen=None))
            else:
                claimed = Row(STARTED, self.index, body)
                yield self._do("claims the key", own._replace(at=_CLAIMED), row=claimed)
        elif row.body != body and not self.world.ignored_body:
            yield self._do("hears 422", own._replace(at=_ANSWERED))
        elif row.state == COMPLETED and not self.world.replay_executes:
            told = self.state.told | {row.answer}
            again = own._replace(at=_ANSWERED, answer=row.answer)
            yield self._do("gets the answer again", again, told=told)
        elif row.leased and row.state == STARTED:
            if self.world.eternal_lease and self._owner_is_gone():
                yield self._do("hears 409, for ever", own._replace(at=_REFUSED))
            # Else it hears 409 and asks again.
        else:
            yield self._do("finds a lease that ran out", own._replace(at=_LOOKED, seen=row))

    def _owner_is_gone(self) -> bool:
        row = self.state.row
        return row is not None and self.state.requests[row.token].at == _GONE

    def _take(self) -> Iterator[tuple[str, State]]:
        """Take the key over, if its row is still the one that was read."""
        own, body = self.own, self.world.requests[self.index]
        if self.state.row == own.seen or self.world.takeover_without_check or own.seen is None:
            claimed = Row(STARTED, self.index, body)
            yield self._do("takes the key", own._replace(at=_CLAIMED, seen=None), row=claimed)
        else:
            yield self._do("was too late", own._replace(at=_ASKING, seen=None))

    def _holds(self) -> bool:
        row = self.state.row
        if row is None or row.state != STARTED:
            return False
        return self.world.without_token or row.token == self.index

    def _completed(self) -> Row | None:
        row = self.state.row
        return row._replace(state=COMPLETED, answer=self.index) if row and self._holds() else row

    def _seal(self) -> Iterator[tuple[str, State]]:
        """Store the answer under the token and commit, with the work; else undo all."""
        own, state = self.own, self.state
        effects = (*state.effects, self.index)
        if self.world.answer_apart:
            yield self._do("commits its work", own._replace(at=_APART), effects=effects)
        elif self._holds():
            sealed = own._replace(at=_SEALED)
            yield self._do(
                "commits work and answer", sealed, row=self._completed(), effects=effects
            )
        else:
            yield self._do("lost its key and undoes all", Request())
        if self.world.early_answer and own.answer not in state.told:
            yield self._do("answers before it commits", own, told=state.told | {own.answer})

    def _release(self) -> Iterator[tuple[str, State]]:
        """It fails: its work is undone, and its key is given back."""
        row = self.state.row
        ours = self._holds() or (self.world.careless_release and row is not None)
        again = {"row": None if ours else row, "failures": self.state.failures + 1}
        yield self._do("fails and releases the key", Request(), **again)


def _broken(world: Idempotency, state: State) -> str | None:
    if len(state.effects) > 1:
        return f"twice: executed by {' and '.join(f'R{index}' for index in state.effects)}"
    if len(state.told) > 1:
        return "answers: two different ones were given"
    for answer in state.told:
        if answer not in state.effects:
            return f"answers: R{answer} told of work that is not committed"
    for index, request in enumerate(state.requests):
        other = world.requests[request.answer] != world.requests[index]
        if request.at == _ANSWERED and request.answer >= 0 and other:
            return f"body: R{index} got the answer to another request"
    return None


def _stuck(state: State) -> str | None:
    """At the end nobody waits for a request that died."""
    if any(request.at == _REFUSED for request in state.requests):
        return "stuck: the key is held by a request that died"
    return None
