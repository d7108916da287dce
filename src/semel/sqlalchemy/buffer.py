"""The write path: events wait in a buffer and are written as the last act before the commit.

The buffer belongs to a database transaction: it is kept beside the `Connection` and follows that
connection's own events, so that the ORM, Core, savepoints, two-phase commits and transactions
that were begun outside all mean the same. Writing last keeps the slot locks, which make the order
of `sequence` the order of commits, for one insert and one commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakMethod

from sqlalchemy import Connection, Dialect, Engine, Table, event, inspect
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import Pool

from semel.aggregate import HasEvents, PendingEvent
from semel.errors import (
    ConfigurationError,
    NoTransactionError,
    StorageError,
    TransactionMisuseError,
)
from semel.failpoints import failpoint
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import PARTITIONS, SLOTS
from semel.sqlalchemy.repetition import unwritten
from semel.sqlalchemy.rows import NewRow, place
from semel.sqlalchemy.schema import check_schema
from semel.sqlalchemy.tables import OutboxRecord

LENT = "semel.lent"
_outbox = cast("Table", OutboxRecord.__table__)
_LINK = "semel.link"
_FLUSHED = "semel.flushed"
_WRITTEN = "semel.written"
_logger = logging.getLogger("semel.outbox")


class Source:
    """Something that may hold further events when the transaction is about to end."""

    def collect(self, buffer: Buffer, *, final: bool) -> None:
        """Add what there is; before the end (*final* is False) what is not ready may be left."""
        raise NotImplementedError


class Buffer:
    """The events of one transaction that are not in the table yet."""

    __slots__ = (
        "derived",
        "dropped",
        "emitted",
        "ids",
        "marks",
        "outside",
        "poisoned",
        "rows",
        "sources",
        "written",
    )

    def __init__(self) -> None:
        self.rows: list[NewRow] = []
        self.ids: set[str] = set()
        self.derived: set[str] = set()
        self.dropped: set[str] = set()
        self.marks: list[tuple[object, int]] = []
        self.sources: list[Source] = []
        self.emitted: list[tuple[HasEvents, PendingEvent]] = []
        self.outside = False  # whether somebody else than a session commits
        self.poisoned = False
        self.written = False

    def append(self, row: NewRow, *, derived: bool = False) -> None:
        """Add an event; one with a *derived* id is left out if it is in the outbox already."""
        self.rows.append(row)
        self.ids.add(row.id)
        if derived:
            self.derived.add(row.id)

    def collect(self, *, final: bool = False) -> None:
        """Take what the sources hold."""
        for source in self.sources:
            source.collect(self, final=final)

    def mark(self, name: object) -> None:
        """A savepoint begins: what comes now belongs to it."""
        self.collect()
        self.marks.append((name, len(self.rows)))

    def release(self, name: object) -> None:
        """A savepoint ends well: its events belong to its parent."""
        self._unwind(name)

    def rewind(self, name: object) -> None:
        """A savepoint is rolled back: its events never happened."""
        length = self._unwind(name)
        if length is not None:
            gone = {row.id for row in self.rows[length:]}
            self.ids -= gone
            self.dropped |= gone
            del self.rows[length:]

    def forget(self) -> None:
        """Everything is durable: the aggregates need not remember their events any more."""
        for aggregate, pending in self.emitted:
            if pending.event_id in self.ids:
                aggregate.discard_events([pending])
        self.emitted.clear()

    def _unwind(self, name: object) -> int | None:
        for index, (known, length) in enumerate(self.marks):
            if known == name:
                del self.marks[index:]
                return length
        return None


class Link(NamedTuple):
    """Which buffer a session's current transaction uses."""

    root: Any
    connection: Connection
    buffer: Buffer


_buffers: WeakKeyDictionary[Connection, Buffer] = WeakKeyDictionary()
# By dialect, which an engine shares with those made of it by execution_options().
_wakers: WeakKeyDictionary[Dialect, list[WeakMethod[Callable[[], None]]]] = WeakKeyDictionary()


def on_commit(engine: Engine, method: Callable[[], None]) -> Callable[[], None]:
    """Call *method* after each commit of events on *engine*, as long as its object lives.

    Returns a function that ends it earlier.
    """
    methods, reference = _wakers.setdefault(engine.dialect, []), WeakMethod(method)
    methods.append(reference)

    def stop() -> None:
        if reference in methods:
            methods.remove(reference)

    return stop


def linked(session: Session) -> Buffer | None:
    """Return the buffer of the session's current transaction, if it has one already."""
    link = session.info.get(_LINK)
    if link is not None and link.root is session.get_transaction():
        buffer: Buffer = link.buffer
        return buffer
    return None


def join(session: Session) -> Buffer:
    """Return the buffer of the session's current transaction; begins it as a statement would."""
    buffer = linked(session)
    if buffer is not None:
        return buffer
    if not session.in_transaction() and not session.autobegin:
        raise NoTransactionError(
            "the session has no transaction and autobegin=False: begin one before adding events"
        )
    bind = session.get_bind(inspect(OutboxRecord))
    connection = session.connection(bind_arguments={"bind": bind})
    if _autocommits(connection):
        raise NoTransactionError(
            "the connection is in AUTOCOMMIT mode: an event could not be written together with "
            "the change that caused it. Use a session with a transaction"
        )
    root = session.get_transaction()
    flushed = session.info.get(_FLUSHED)
    if flushed is not None and flushed[0] is root:
        _refuse_other_database(session, connection, flushed[1])
    buffer = _buffers.setdefault(connection, Buffer())
    buffer.outside |= isinstance(bind, Connection)
    session.info[_LINK] = Link(root, connection, buffer)
    return buffer


def _autocommits(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is None:
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT"


def _write(connection: Connection) -> None:
    buffer = _buffers.get(connection)
    if buffer is None:
        return
    if buffer.poisoned:
        raise StorageError(
            "writing the events of this transaction failed: roll it back and start again"
        )
    try:
        buffer.collect(final=True)
        if buffer.rows:
            check_schema(connection)
            failpoint("write.before_insert")
            if not _insert(connection, buffer.rows, unless=buffer.derived):
                _insert(connection, unwritten(connection, _outbox, buffer.rows, buffer.derived))
            failpoint("write.after_insert")
            buffer.written = True
            buffer.rows.clear()
    except BaseException:
        # The database may have rolled everything back already (InnoDB does on a deadlock):
        # a later commit must not make half of the transaction durable.
        buffer.poisoned = True
        try:
            connection.dialect.do_rollback(connection.connection)
        except Exception:  # noqa: BLE001  the first error is the one to tell
            _logger.debug("rollback after a failed write failed too")
        raise


def _insert(
    connection: Connection, rows: Sequence[NewRow], *, unless: Collection[str] = ()
) -> bool:
    if not rows:
        return True
    plan = place(rows, slots=SLOTS, partitions=PARTITIONS)
    database = database_of(connection.dialect)
    return database.write_events(connection, plan, _outbox, unless=unless)


def _commit(connection: Connection) -> None:
    _write(connection)
    buffer = _buffers.get(connection)
    if buffer is not None and buffer.written and buffer.outside:
        # Nobody tells when this COMMIT is done: the next use of the connection shows it.
        connection.info[_WRITTEN] = (connection.dialect, buffer)


def _prepare(connection: Connection, _xid: Any) -> None:
    _write(connection)


def _commit_two_phase(connection: Connection, _xid: Any, _is_prepared: bool) -> None:
    _commit(connection)


def _fail(context: ExceptionContext) -> None:
    buffer = _buffers.get(context.connection) if context.connection is not None else None
    if buffer is not None and buffer.written:
        buffer.poisoned = True


def _begin(connection: Connection, *_: Any) -> None:
    _buffers.pop(connection, None)
    _settle(connection.info)


def _discard(connection: Connection, *_: Any) -> None:
    _buffers.pop(connection, None)


def _returned(_connection: Any, record: Any) -> None:
    _settle(record.info)


def _session_committed(session: Session) -> None:
    buffer = linked(session)
    if buffer is None:
        return
    nested = session.get_nested_transaction()
    if nested is not None:
        buffer.release(nested)
    elif buffer.written:
        connection: Connection = session.info[_LINK].connection
        connection.info.pop(_WRITTEN, None)
        _committed(connection.dialect, buffer)


def _settle(info: Any) -> None:
    dialect, buffer = info.pop(_WRITTEN, (None, None))
    if buffer is not None and not buffer.poisoned:
        _committed(dialect, buffer)


def _committed(dialect: Dialect, buffer: Buffer) -> None:
    failpoint("write.after_commit")
    buffer.forget()
    for reference in tuple(_wakers.get(dialect, ())):
        wake = reference()
        if wake is not None:
            wake()
        else:
            _wakers[dialect].remove(reference)


def _flushed(session: Session, context: Any) -> None:
    root, dialects = session.get_transaction(), set()
    known = session.info.get(_FLUSHED)
    if known is not None and known[0] is root:
        dialects = known[1]
    else:
        session.info[_FLUSHED] = (root, dialects)
    dialects |= {session.get_bind(mapper).dialect for mapper in context.mappers}
    if linked(session) is not None:
        _refuse_other_database(session, session.info[_LINK].connection, dialects)


def has_flushed(session: Session) -> bool:
    """Tell whether the session's current transaction has written entities."""
    known = session.info.get(_FLUSHED)
    return known is not None and known[0] is session.get_transaction() is not None


def _refuse_other_database(
    session: Session, connection: Connection, dialects: set[Dialect]
) -> None:
    if dialects - {connection.dialect} and not session.twophase:
        raise ConfigurationError(
            "the session writes entities and events through different engines: they would not "
            "commit together. Bind both to one engine, or use Session(twophase=True)"
        )


def _session_begun(session: Session, transaction: SessionTransaction) -> None:
    # A session sends the SAVEPOINT only with its first statement inside, and an event is none.
    buffer = linked(session) if transaction.nested else None
    if buffer is not None:
        buffer.mark(transaction)


def _session_ended(session: Session, transaction: SessionTransaction) -> None:
    buffer = linked(session) if transaction.nested else None
    if buffer is not None:
        buffer.rewind(transaction)  # unless it was released, by its commit


def _savepoint(connection: Connection, name: str | None) -> None:
    if name is None:
        # SQLAlchemy tells of a savepoint before it gives it a name, by counting.
        name = f"sa_savepoint_{vars(connection)['_Connection__savepoint_seq'] + 1}"
    # Also for a transaction without events so far: those to come belong to the savepoint.
    _buffers.setdefault(connection, Buffer()).mark(name)


def _rollback_savepoint(connection: Connection, name: str, _context: Any) -> None:
    buffer = _buffers.get(connection)
    if buffer is not None:
        buffer.rewind(name)


def _release_savepoint(connection: Connection, name: str, _context: Any) -> None:
    buffer = _buffers.get(connection)
    if buffer is not None:
        buffer.release(name)


def _refuse_commit(session: Session) -> None:
    if session.info.get(LENT) and not session.in_nested_transaction():
        raise TransactionMisuseError(
            "this session is lent to the handler: semel commits it together with a row of its own. "
            "Remove the commit() from the handler"
        )


# Listening on the classes, once: a listener per session costs more than the insert it serves.
for _name, _listener in (
    ("begin", _begin),
    ("begin_twophase", _begin),
    ("commit", _commit),
    ("prepare_twophase", _prepare),
    ("commit_twophase", _commit_two_phase),
    ("rollback", _discard),
    ("rollback_twophase", _discard),
    ("savepoint", _savepoint),
    ("rollback_savepoint", _rollback_savepoint),
    ("release_savepoint", _release_savepoint),
    ("handle_error", _fail),
):
    event.listen(Engine, _name, _listener)
event.listen(Pool, "checkin", _returned)
event.listen(Session, "after_commit", _session_committed)
event.listen(Session, "before_commit", _refuse_commit)
event.listen(Session, "after_flush", _flushed)
event.listen(Session, "after_transaction_create", _session_begun)
event.listen(Session, "after_transaction_end", _session_ended)
