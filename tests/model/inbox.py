"""The inbox: a broker that delivers again, consumers that die, a handler that fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explore import Protocol

_IDLE, _RECEIVED, _COUNTED, _ADMITTED, _HANDLED, _COMMITTED, _GIVEN_UP = range(7)
PROCESSED, RECEIVED, DEAD = "PROCESSED", "RECEIVED", "DEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """How large the world is, what goes wrong in it, and which bugs it has."""

    consumers: int = 2
    deliveries: int = 3
    crashes: int = 1
    failures: int = 0
    attempts: int = 3  # so often a message may be begun before it is given up
    deadly: bool = False  # the handler kills its process
    replays: int = 0  # an operator sends a DEAD message again
    # Bugs
    commit_first: bool = False
    two_transactions: bool = False
    check_then_act: bool = False
    early_ack: bool = False
    forgetful: bool = False
    careless_burial: bool = False
    reopened: bool = False


class Consumer(NamedTuple):
    """How far a consumer is with its delivery."""

    at: int = _IDLE
    worked: bool = False  # its work is committed, apart from the row


class State(NamedTuple):
    """The message at the broker, its row in the inbox, and what the handler has done."""

    consumers: tuple[Consumer, ...]
    queued: int = 1  # copies that the broker has to deliver
    left: int = 0  # so many more it may make
    row: str | None = None
    attempts: int = 0
    again: bool = False  # it was given up, and is being tried
    holder: int = -1  # whose transaction has the row, uncommitted
    effects: int = 0
    letters: int = 0
    acked: bool = False  # the broker sends it no more, whoever else has it
    overwritten: bool = False  # DEAD over PROCESSED
    starts: int = 0
    crashes: int = 0
    failures: int = 0
    replays: int = 0


def inbox(world: Inbox) -> Protocol[State]:
    """Return the protocol in *world*: one message for one consumer group."""
    start = State(consumers=(Consumer(),) * world.consumers, left=world.deliveries)
    return Protocol(
        start=start,
        steps=lambda state: _steps(world, state),
        broken=lambda state: _broken(world, state),
        stuck=_stuck,
    )


def _steps(world: Inbox, state: State) -> Iterator[tuple[str, State]]:
    unacked = state.queued or (
        not world.early_ack and any(consumer.at != _IDLE for consumer in state.consumers)
    )
    if state.left and state.queued < 2 and unacked and not state.acked:
        yield (
            "the broker delivers it once more",
            state._replace(queued=state.queued + 1, left=state.left - 1),
        )
    if state.row == DEAD and state.replays < world.replays:
        yield (
            "an operator replays it, and it is delivered twice",
            state._replace(queued=state.queued + 2, replays=state.replays + 1, acked=False),
        )
    for index in range(world.consumers):
        yield from Turn(world, state, index).steps()


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of one consumer."""

    world: Inbox
    state: State
    index: int

    @property
    def own(self) -> Consumer:
        """How far it is."""
        return self.state.consumers[self.index]

    def _do(self, text: str, own: Consumer, **changes: Any) -> tuple[str, State]:
        others = self.state.consumers
        consumers = (*others[: self.index], own, *others[self.index + 1 :])
        return f"C{self.index} {text}", self.state._replace(consumers=consumers, **changes)

    def _ends(self) -> dict[str, int]:
        """Return what changes when its transaction ends."""
        return {"holder": -1} if self.state.holder == self.index else {}

    def steps(self) -> Iterator[tuple[str, State]]:
        """Yield what it may do."""
        own, state = self.own, self.state
        if own.at == _IDLE:
            if state.queued:
                yield self._do("receives it", Consumer(_RECEIVED), queued=state.queued - 1)
            return
        if state.crashes < self.world.crashes:
            # Its transaction is rolled back; without an ack the broker has the message still.
            dead = {"crashes": state.crashes + 1, "queued": state.queued + self._again()}
            yield self._do("dies", Consumer(), **dead, **self._ends())
        doing = {
            _RECEIVED: self._begin,
            _COUNTED: self._admit,
            _ADMITTED: self._handle,
            _HANDLED: self._commit,
            _GIVEN_UP: self._bury,
            _COMMITTED: self._ack,
        }
        yield from doing[own.at]()

    def _again(self) -> int:
        return 0 if self.world.early_ack or self.state.acked else 1

    def _begin(self) -> Iterator[tuple[str, State]]:
        """Count the attempt durably, before a handler that may kill the process runs."""
        own, state = self.own, self.state
        if state.holder >= 0:
            return  # the row is locked
        if state.row == PROCESSED:
            yield self._do("goes to the gate", own._replace(at=_COUNTED))
            return
        # A replay has its attempts before it.
        again = state.row == DEAD
        begun = 1 if again and not state.again else state.attempts + 1
        if begun > self.world.attempts:
            yield self._do("gives it up", own._replace(at=_GIVEN_UP))
            return
        counted = {
            "attempts": 0 if self.world.forgetful else begun,
            "row": DEAD if again and not self.world.reopened else RECEIVED,
            "again": again and not self.world.reopened,
        }
        yield self._do("counts an attempt", own._replace(at=_COUNTED), **counted)

    def _admit(self) -> Iterator[tuple[str, State]]:
        """Insert the row, or take it: the gate. Who finds it uncommitted waits."""
        own, state, world = self.own, self.state, self.world
        if world.check_then_act or world.two_transactions:
            if state.row == PROCESSED:
                yield self._do("finds it processed", own._replace(at=_COMMITTED))
            else:
                yield self._do("finds no row", own._replace(at=_ADMITTED))
        elif state.holder < 0:
            if state.row == PROCESSED:
                yield self._do("finds a duplicate", own._replace(at=_COMMITTED))
            elif world.commit_first:
                yield self._do("commits the row", own._replace(at=_ADMITTED), row=PROCESSED)
            else:
                yield self._do("inserts the row", own._replace(at=_ADMITTED), holder=self.index)

    def _handle(self) -> Iterator[tuple[str, State]]:
        state, starts = self.state, self.state.starts + 1
        if self.world.deadly:
            back = {"queued": state.queued + self._again(), "starts": starts}
            yield self._do("dies of the handler", Consumer(), **back, **self._ends())
            return
        yield self._do("runs the handler", self.own._replace(at=_HANDLED), starts=starts)
        if state.failures < self.world.failures:
            failed = {"failures": state.failures + 1, "queued": state.queued + self._again()}
            yield self._do("runs the handler, which fails", Consumer(), **failed, **self._ends())

    def _commit(self) -> Iterator[tuple[str, State]]:
        own, state = self.own, self.state
        if not self.world.two_transactions:
            row = state.row if self.world.commit_first else PROCESSED
            done = {"row": row, "effects": state.effects + 1, **self._ends()}
            yield self._do("commits", own._replace(at=_COMMITTED), **done)
        elif own.worked:
            yield self._do("notes it", own._replace(at=_COMMITTED), row=PROCESSED)
        else:
            worked = own._replace(worked=True)
            yield self._do("commits its work alone", worked, effects=state.effects + 1)

    def _bury(self) -> Iterator[tuple[str, State]]:
        """Mark it DEAD and write a letter, unless it was processed meanwhile."""
        done, state = self.own._replace(at=_COMMITTED), self.state
        if state.holder >= 0:
            return  # the row is locked
        if state.row == PROCESSED and not self.world.careless_burial:
            yield self._do("finds it processed", done)
            return
        dead = {"row": DEAD, "letters": state.letters + 1, "again": False}
        yield self._do("buries it", done, **dead, overwritten=state.row == PROCESSED)

    def _ack(self) -> Iterator[tuple[str, State]]:
        state = self.state
        yield self._do("acks", Consumer())
        if not state.acked:
            yield self._do("acks, for every copy", Consumer(), acked=True, queued=0)
        if state.left and not state.acked:
            lost = {"queued": state.queued + 1, "left": state.left - 1}
            yield self._do("acks, which is lost", Consumer(), **lost)


def _broken(world: Inbox, state: State) -> str | None:
    if state.effects > 1:
        return "twice: the handler's work is committed a second time"
    if state.overwritten:
        return "state machine: what was processed is buried"
    if world.deadly and state.starts > world.attempts * (1 + state.letters):
        return "loop: a message that kills its consumer is tried for ever"
    return None


def _stuck(state: State) -> str | None:
    """At the end the work is done, or a letter tells why not; the row says which."""
    if not state.effects and not state.letters:
        return "loss: the message is gone, and its work was never done"
    if not state.effects and state.row != DEAD:
        return "open: the message was given up, and its row tells that it is being tried"
    return None
