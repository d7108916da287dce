"""Domain events follow their session: collected from its aggregates, undone by its rollbacks.

A rollback expires the entities that the database knows: the changes that their events tell of are
undone, and so are the events. Entities that were new are put out of the session and keep theirs:
saving the same object again sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from sqlalchemy import event, inspect
from sqlalchemy.orm import Session, SessionTransaction

from semel.aggregate import DELETED, HasEvents, to_envelope
from semel.errors import ConfigurationError
from semel.sqlalchemy.buffer import Buffer, linked
from semel.sqlalchemy.outbox import SqlAlchemyOutbox

#: Set in `Session.info` where the events of all entities are collected.
COLLECTS = "semel.collects"
_TRACKED = "semel.tracked"
_kinds: WeakKeyDictionary[type[Any], bool] = WeakKeyDictionary()


class Tracked(list[HasEvents]):
    """Aggregates that somebody named, in the order of naming."""

    def follow(self, session: Session) -> None:
        """Undo with the session's rollbacks."""
        lists: list[Tracked] = session.info.setdefault(_TRACKED, [])
        if not any(known is self for known in lists):
            lists.append(self)

    def leave(self, session: Session) -> None:
        """End that."""
        lists: list[Tracked] = session.info.get(_TRACKED, [])
        lists[:] = [known for known in lists if known is not self]


class _Mark:
    """What was pending when a savepoint began."""

    def __init__(self, session: Session) -> None:
        self.lengths = {id(tracked): len(tracked) for tracked in _lists(session)}
        self.events = {
            pending.event_id
            for aggregate in _aggregates(session)
            for pending in aggregate.pending_events
        }


_marks: WeakKeyDictionary[SessionTransaction, _Mark] = WeakKeyDictionary()


def emit(aggregate: HasEvents, outbox: SqlAlchemyOutbox, buffer: Buffer, *, final: bool) -> None:
    """Add the aggregate's pending events that are not in the buffer yet."""
    for pending in aggregate.pending_events:
        if pending.event_id in buffer.ids or pending.event_id in buffer.dropped:
            continue
        try:
            envelope = to_envelope(
                aggregate, pending, tenant_id=outbox.tenant_id, headers=outbox.headers
            )
        except ConfigurationError:
            # An entity that is not flushed yet may lack its id; at the end it must not.
            if final:
                raise
            continue
        buffer.append(outbox.row(envelope))
        buffer.emitted.append((aggregate, pending))


def with_events(session: Session) -> Iterator[HasEvents]:
    """Return the session's entities that have events: new, changed, deleted or unchanged."""
    seen: set[int] = set()
    gone = [entity for entity in session.info.get(DELETED, ()) if inspect(entity).deleted]
    group: Iterable[Any]
    for group in (session.new, session.dirty, session.deleted, session.identity_map.values(), gone):
        for entity in group:
            if id(entity) not in seen and has_events(entity):
                seen.add(id(entity))
                if entity.pending_events:
                    yield entity


def has_events(entity: Any) -> TypeGuard[HasEvents]:
    """Tell whether it is `HasEvents`, decided once per class: the check itself is slow."""
    kind = type(entity)
    known = _kinds.get(kind)
    if known is None:
        known = _kinds[kind] = isinstance(entity, HasEvents)
    return known


def _lists(session: Session) -> list[Tracked]:
    found: list[Tracked] = session.info.get(_TRACKED, [])
    return found


def _aggregates(session: Session) -> list[HasEvents]:
    found = [aggregate for tracked in _lists(session) for aggregate in tracked]
    if session.info.get(COLLECTS):
        found += with_events(session)
    return found


def _begun(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested and (_TRACKED in session.info or COLLECTS in session.info):
        _marks[transaction] = _Mark(session)


def _rolled_back(session: Session, transaction: SessionTransaction) -> None:
    if _TRACKED not in session.info and COLLECTS not in session.info:
        return
    if transaction.nested:
        mark = _marks.pop(transaction, None)
        for tracked in _lists(session):
            del tracked[mark.lengths.get(id(tracked), 0) if mark is not None else 0 :]
        known = mark.events if mark is not None else set()
        for aggregate in _aggregates(session):
            _undo(aggregate, known)
    elif transaction.parent is None:
        for aggregate in _aggregates(session):
            state = inspect(aggregate, raiseerr=False)
            if state is not None and state.persistent:
                _undo(aggregate, set())
        for tracked in _lists(session):
            tracked.clear()
    buffer = linked(session)
    if buffer is not None:
        buffer.dropped.clear()


def _undo(aggregate: HasEvents, known: set[str]) -> None:
    undone = [item for item in aggregate.pending_events if item.event_id not in known]
    if undone:
        aggregate.discard_events(undone)


event.listen(Session, "after_transaction_create", _begun)
event.listen(Session, "after_soft_rollback", _rolled_back)
