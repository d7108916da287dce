"""Collect domain events from entities whenever a session commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from semel.errors import ConfigurationError
from semel.sqlalchemy.buffer import Buffer, Source, join
from semel.sqlalchemy.emitters import COLLECTS, emit, with_events
from semel.sqlalchemy.outbox import SqlAlchemyOutbox

Tenant = str | Callable[[Session], str]


def collect_events_on_flush(
    session_factory: async_sessionmaker[AsyncSession] | sessionmaker[Session],
    *,
    tenant_id: Tenant = "default",
) -> None:
    """Write the pending events of all entities of a session together with the entities.

    New, changed, deleted and unchanged entities count. An entity forgets its events only after
    the commit, so that a retry with the same new object sends them; a rollback of changes to a
    stored entity undoes their events too. Bulk statements (`session.execute(insert(...))`) bypass
    entities and so emit nothing.
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
    session_factory.configure(info={**(session_factory.kw.get("info") or {}), COLLECTS: True})

    def collect(session: Session, _context: Any = None) -> None:
        if next(with_events(session), None) is None:
            return
        buffer = join(session)
        for source in buffer.sources:
            if isinstance(source, _Entities) and source.reads(session):
                break
        else:
            tenant = tenant_id(session) if callable(tenant_id) else tenant_id
            source = _Entities(session, tenant)
            buffer.sources.append(source)
        source.collect(buffer, final=False)

    event.listen(target, "before_commit", collect)
    event.listen(target, "after_flush", collect)


class _Entities(Source):
    """The entities of one session."""

    def __init__(self, session: Session, tenant_id: str) -> None:
        # A strong one would keep the connection alive, beside which this is kept.
        self._session = ref(session)
        self._tenant_id = tenant_id

    def reads(self, session: Session) -> bool:
        return self._session() is session

    def collect(self, buffer: Buffer, *, final: bool) -> None:
        """Add the pending events that are not in the buffer yet."""
        session = self._session()
        if session is not None:
            outbox = SqlAlchemyOutbox(session, self._tenant_id)
            for entity in with_events(session):
                emit(entity, outbox, buffer, final=final)
