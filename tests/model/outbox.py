"""The outbox: writers, a partition's lease, projectors, a broker, an operator.

Three events; by default `a` and `b` have one key, and `x` another one in the same partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.explore import Protocol
from tests.model.projector import Turn
from tests.model.rows import DEAD, NEW, PENDING, SENT
from tests.model.world import NOBODY, Outbox, Projector, Row, State

_IDLE, _LOCKED, _INSERTED, _COMMITTED, _DONE = range(5)


def outbox(world: Outbox) -> Protocol[State]:
    """Return the protocol in *world*."""
    start = State(
        rows=(),
        number=1,
        locks=tuple((key, NOBODY) for key in sorted(set(world.keys))),
        writers=(_IDLE,) * len(world.events),
        commits="",
        owner=NOBODY,
        epoch=0,
        projectors=(Projector(),) * world.projectors,
    )
    return Protocol(
        start=start,
        steps=lambda state: _steps(world, state),
        broken=lambda state: _broken(world, state),
        stuck=lambda state: _stuck(world, state),
    )


def _steps(world: Outbox, state: State) -> Iterator[tuple[str, State]]:
    for index in range(len(world.events)):
        yield from _write(world, state, index)
    yield from _operate(world, state)
    for index in range(world.projectors):
        yield from Turn(world, state, index).steps()


def _write(world: Outbox, state: State, index: int) -> Iterator[tuple[str, State]]:
    """One writer: lock the slot of its key, insert, commit, unlock."""
    event, at = world.events[index], state.writers[index]
    key, locks = world.key(event), dict(state.locks)

    def go(text: str, to: int, **changes: Any) -> tuple[str, State]:
        writers = (*state.writers[:index], to, *state.writers[index + 1 :])
        return f"the writer of {event} {text}", state._replace(writers=writers, **changes)

    if at == _IDLE:
        if world.without_lock:
            yield go("takes no lock", _LOCKED)
        elif locks[key] == NOBODY:
            held = tuple(sorted({**locks, key: index}.items()))
            yield go(f"locks the slot of {key}", _LOCKED, locks=held)
    elif at == _LOCKED:
        number = state.number
        if world.reused_numbers:
            number = max((row.number for row in state.rows), default=0) + 1
        rows = (*state.rows, Row(number, event))
        yield go(f"inserts number {number}", _INSERTED, rows=rows, number=number + 1)
    elif at == _INSERTED:
        rows = tuple(r._replace(visible=True) if r.event == event else r for r in state.rows)
        yield go("commits", _COMMITTED, rows=rows, commits=state.commits + event)
        if world.aborts:
            kept = rows if world.ghosts else tuple(r for r in rows if r.event != event)
            yield go("rolls back", _COMMITTED, rows=kept)
    elif at == _COMMITTED:
        free = tuple((slot, NOBODY if who == index else who) for slot, who in state.locks)
        yield go("ends", _DONE, locks=free)


def _operate(world: Outbox, state: State) -> Iterator[tuple[str, State]]:
    """An operator requeues what blocks a key; the clean-up must delete what is SENT only."""
    for row in state.visible():
        if row.status == DEAD and world.dead == "block" and not state.requeues:
            # Parked, until the owner takes it up together with what waits behind it.
            after = state.move(row.number, NEW, parked=not world.read_ahead)
            yield f"an operator requeues {row.event}", after._replace(requeues=1)
        if world.hasty_cleanup and row.status in PENDING:
            rows = tuple(other for other in state.rows if other is not row)
            yield f"the clean-up deletes {row.event}", state._replace(rows=rows)


def _broken(world: Outbox, state: State) -> str | None:
    """Find faults, ghosts, losses, and first arrivals out of the order of commits."""
    if state.fault is not None:
        return f"state machine: {state.fault}"
    for event in state.broker:
        if event not in state.commits:
            return f"ghost: {event} reached the broker and was never committed"
    if not world.early_sent:
        for row in state.visible():
            if row.status == SENT and row.event not in state.broker:
                return f"loss: {row.event} is SENT and never reached the broker"
    for key in set(world.keys):
        committed = [e for e in state.commits if world.key(e) == key and e not in state.skipped]
        arrived = [e for e in state.broker if world.key(e) == key and e not in state.skipped]
        if arrived != committed[: len(arrived)]:
            return f"order: commits {' '.join(committed)}, broker {' '.join(arrived)}"
    return None


def _stuck(world: Outbox, state: State) -> str | None:
    """At the end everything was sent, or is DEAD and kept."""
    kept = {row.event for row in state.visible() if row.status == DEAD}
    lost = [event for event in state.commits if event not in state.broker and event not in kept]
    return f"loss: {' '.join(lost)} will never be sent" if lost else None
