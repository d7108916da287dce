"""Collect domain events from entities whenever a session commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from semel.aggregate import HasEvents, PendingEvent, to_envelope
from semel.errors import ConfigurationError
from semel.sqlalchemy.buffer import Buffer, Source, join
from semel.sqlalchemy.outbox import SqlAlchemyOutbox

Tenant = str | Callable[[Session], str]


def collect_events_on_flush(
    session_factory: async_sessionmaker[AsyncSession] | sessionmaker[Session],
    *,
    tenant_id: Tenant = "default",
) -> None:
    """Write the pending events of all entities of a session together with the entities.

    New, changed, deleted and unchanged entities count. An entity forgets its events only after
    the commit, so that a retry with the same object sends them. Bulk statements
    (`session.execute(insert(...))`) bypass entities and so emit nothing.
    """
    if isinstance(session_factory, async_sessionmaker):
        base = session_factory.kw.get("sync_session_class", Session)
        collecting = type("CollectingSession", (base,), {})
        session_factory.configure(sync_session_class=collecting)
        target: Any = collecting
    elif isinstance(session_factory, sessionmaker):
        target = session_factory
    else:
        raise ConfigurationError(
            "collect_events_on_flush needs a sessionmaker or an async_sessionmaker, "
            f"not {type(session_factory).__name__}"
        )

    def attach(session: Session) -> tuple[Buffer, _Entities]:
        buffer = join(session)
        for source in buffer.sources:
            if isinstance(source, _Entities) and source.reads(session):
                return buffer, source
        source = _Entities(session, tenant_id(session) if callable(tenant_id) else tenant_id)
        buffer.sources.append(source)
        return buffer, source

    def before_commit(session: Session) -> None:
        if next(_with_events(session), None) is not None:
            attach(session)

    def after_flush(session: Session, _context: Any) -> None:
        if next(_with_events(session), None) is not None:
            buffer, source = attach(session)
            source.collect(buffer, final=False)

    event.listen(target, "before_commit", before_commit)
    event.listen(target, "after_flush", after_flush)


def _with_events(session: Session) -> Iterator[HasEvents]:
    seen: set[int] = set()
    for group in (session.new, session.dirty, session.deleted, session.identity_map.values()):
        for entity in group:
            if id(entity) in seen or not isinstance(entity, HasEvents):
                continue
            seen.add(id(entity))
            if entity.pending_events:
                yield entity


class _Entities(Source):
    """The entities of one session."""

    def __init__(self, session: Session, tenant_id: str) -> None:
        self._session = ref(session)
        self._tenant_id = tenant_id

    def reads(self, session: Session) -> bool:
        return self._session() is session

    def collect(self, buffer: Buffer, *, final: bool) -> None:
        """Add the pending events that are not in the buffer yet."""
        session = self._session()
        if session is None:
            return
        outbox = SqlAlchemyOutbox(session, self._tenant_id)
        for entity in _with_events(session):
            fresh: list[PendingEvent] = []
            for pending in entity.pending_events:
                if pending.event_id in buffer.ids or pending.event_id in buffer.dropped:
                    continue
                try:
                    envelope = to_envelope(entity, pending, tenant_id=self._tenant_id)
                except ConfigurationError:
                    # An entity that is not flushed yet may lack its id; at the end it must not.
                    if final:
                        raise
                    continue
                buffer.append(outbox.row(envelope))
                fresh.append(pending)
            if fresh:
                buffer.after_commit.append(_discard(entity, fresh))


def _discard(entity: HasEvents, events: list[PendingEvent]) -> Callable[[], None]:
    return lambda: entity.discard_events(events)
