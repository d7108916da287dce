"""The write path: events wait in a buffer and are written as the last act before the commit.

The buffer belongs to a database transaction: it is kept beside the `Connection` and follows that
connection's own events, so that the ORM, Core, savepoints, two-phase commits and transactions
that were begun outside all mean the same. Writing last keeps the slot locks, which make the order
of `sequence` the order of commits, for one insert and one commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, event, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from semel.errors import (
    NoTransactionError,
    SchemaError,
    StorageError,
    TransactionMisuseError,
)
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.rows import NewRow, place
from semel.sqlalchemy.layout import PARTITIONS, SCHEMA_VERSION, SLOTS
from semel.sqlalchemy.tables import OutboxControl, OutboxRecord

LENT = "semel.lent"
_outbox = cast("Table", OutboxRecord.__table__)
_LINK = "semel.link"
_logger = logging.getLogger("semel.outbox")


class Source:
    """Something that may hold further events when the transaction is about to end."""

    def collect(self, buffer: Buffer, *, final: bool) -> None:
        """Add what there is; before the end (*final* is False) what is not ready may be left."""
        raise NotImplementedError


class Buffer:
    """The events of one transaction that are not in the table yet."""

    __slots__ = ("after_commit", "dropped", "ids", "marks", "poisoned", "rows", "sources", "written")

    def __init__(self) -> None:
        self.rows: list[NewRow] = []
        self.ids: set[str] = set()
        self.dropped: set[str] = set()
        self.marks: list[tuple[str, int]] = []
        self.sources: list[Source] = []
        self.after_commit: list[Callable[[], None]] = []
        self.poisoned = False
        self.written = 0

    def append(self, row: NewRow) -> None:
        """Add an event."""
        self.rows.append(row)
        self.ids.add(row.id)

    def collect(self, *, final: bool = False) -> None:
        """Take what the sources hold."""
        for source in self.sources:
            source.collect(self, final=final)

    def mark(self, name: str) -> None:
        """A savepoint begins: what comes now belongs to it."""
        self.collect()
        self.marks.append((name, len(self.rows)))

    def release(self, name: str) -> None:
        """A savepoint ends well: its events belong to its parent."""
        self._unwind(name)

    def rewind(self, name: str) -> None:
        """A savepoint is rolled back: its events never happened."""
        self.collect()
        length = self._unwind(name)
        if length is not None:
            for row in self.rows[length:]:
                self.ids.discard(row.id)
                self.dropped.add(row.id)
            del self.rows[length:]

    def _unwind(self, name: str) -> int | None:
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
_checked: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()
_wakers: WeakKeyDictionary[Engine, list[Callable[[], None]]] = WeakKeyDictionary()


def on_commit(engine: Engine, callback: Callable[[], None]) -> Callable[[], None]:
    """Call *callback* after each commit of events on *engine*; return a function that stops it."""
    callbacks = _wakers.setdefault(engine, [])
    callbacks.append(callback)

    def stop() -> None:
        if callback in callbacks:
            callbacks.remove(callback)

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
    connection = session.connection(bind_arguments={"mapper": inspect(OutboxRecord)})
    if _autocommits(connection):
        raise NoTransactionError(
            "the connection is in AUTOCOMMIT mode: an event could not be written together with "
            "the change that caused it. Use a session with a transaction"
        )
    buffer = _buffers.get(connection)
    if buffer is None:
        buffer = _buffers[connection] = Buffer()
    session.info[_LINK] = Link(session.get_transaction(), connection, buffer)
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
            plan = place(buffer.rows, slots=SLOTS, partitions=PARTITIONS)
            database_of(connection.dialect).write_events(connection, plan, _outbox)
            buffer.written += len(buffer.rows)
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


def check_schema(connection: Connection) -> None:
    """Raise `SchemaError` unless the tables are there and of this version."""
    if _checked.get(connection.engine):
        return
    try:
        value = connection.execute(
            select(OutboxControl.value).where(OutboxControl.name == "schema")
        ).scalar_one_or_none()
    except DBAPIError as error:
        if database_of(connection.dialect).is_missing_table(error):
            raise SchemaError(
                "semel's tables do not exist in this database: run `semel db create`, "
                "or `await storage.initialize()` in tests"
            ) from None
        raise
    verify_schema(value)
    database_of(connection.dialect).check_server(connection)
    _checked[connection.engine] = True


def verify_schema(value: Any) -> None:
    """Raise `SchemaError` unless *value*, the control row, describes what this code writes."""
    expected = schema_row()
    if not isinstance(value, dict):
        raise SchemaError("semel's tables are incomplete: run `semel db create`")
    if value.get("version") != expected["version"]:
        raise SchemaError(
            f"semel's tables are of version {value.get('version')}, this release needs version "
            f"{expected['version']}: run `semel db upgrade`"
        )
    if value != expected:
        raise SchemaError(
            "the control row of this database names another hash or other counts than this "
            "release uses: events would be written out of order. Run `semel db check`"
        )


def schema_row() -> dict[str, Any]:
    """Return the control row that this release writes and expects."""
    return {
        "version": SCHEMA_VERSION,
        "hash": "crc32",
        "slots": SLOTS,
        "partitions": PARTITIONS,
    }


def _reset(connection: Connection, *_: Any) -> None:
    buffer = _buffers.pop(connection, None)
    if buffer is not None and buffer.written and not buffer.poisoned:
        _committed(connection.engine, buffer)


def _discard(connection: Connection, *_: Any) -> None:
    _buffers.pop(connection, None)


def _committed(engine: Engine, buffer: Buffer) -> None:
    hooks, buffer.after_commit = buffer.after_commit, []
    buffer.written = 0
    for hook in hooks:
        hook()
    for wake in tuple(_wakers.get(engine, ())):
        wake()


def _savepoint(connection: Connection, name: str) -> None:
    buffer = _buffers.get(connection)
    if buffer is not None:
        buffer.mark(name)


def _rollback_savepoint(connection: Connection, name: str, _context: Any) -> None:
    buffer = _buffers.get(connection)
    if buffer is not None:
        buffer.rewind(name)


def _release_savepoint(connection: Connection, name: str, _context: Any) -> None:
    buffer = _buffers.get(connection)
    if buffer is not None:
        buffer.release(name)


def _prepare(connection: Connection, _xid: Any) -> None:
    _write(connection)


def _commit_two_phase(connection: Connection, _xid: Any, is_prepared: bool) -> None:  # noqa: FBT001
    if not is_prepared:
        _write(connection)


def _session_committed(session: Session) -> None:
    link = session.info.get(_LINK)
    if link is not None and link.buffer.written and not session.in_nested_transaction():
        _committed(link.connection.engine, link.buffer)


def _refuse_commit(session: Session) -> None:
    if session.info.get(LENT) and not session.in_nested_transaction():
        raise TransactionMisuseError(
            "this session is lent to the handler: semel commits it together with the inbox row. "
            "Remove the commit() from the handler"
        )


# Listening on the classes, once: a listener per session costs more than the insert it serves.
for _name, _listener in (
    ("begin", _reset),
    ("begin_twophase", _reset),
    ("commit", _write),
    ("prepare_twophase", _prepare),
    ("commit_twophase", _commit_two_phase),
    ("rollback", _discard),
    ("rollback_twophase", _discard),
    ("savepoint", _savepoint),
    ("rollback_savepoint", _rollback_savepoint),
    ("release_savepoint", _release_savepoint),
):
    event.listen(Engine, _name, _listener)
event.listen(Session, "after_commit", _session_committed)
event.listen(Session, "before_commit", _refuse_commit)
