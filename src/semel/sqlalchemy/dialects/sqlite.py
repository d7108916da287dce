"""SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Delete,
    Engine,
    Insert,
    Integer,
    String,
    Table,
    bindparam,
    delete,
    event,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import TypeEngine

from semel.errors import ConfigurationError
from semel.sqlalchemy.dialects.base import Database

_FORMAT = "%Y-%m-%d %H:%M:%f"
_BUSY, _LOCKED, _IOERR, _FULL, _CANTOPEN = 5, 6, 10, 13, 14


class Sqlite(Database):
    """SQLite 3.35 and later, on a file, by aiosqlite."""

    own_transaction_options: Mapping[str, Any] = {}

    def position_type(self) -> TypeEngine[Any]:
        """Return INTEGER, the only type that SQLite issues numbers for."""
        return Integer()

    def now(self) -> ColumnElement[Any]:
        """Return the clock, in the text form that datetimes are stored in."""
        return func.strftime(_FORMAT, "now", type_=String).concat(literal("000"))

    def later(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """Return the clock plus *seconds*."""
        if not isinstance(seconds, ColumnElement):
            seconds = bindparam(None, seconds)
        modifier = func.printf("%+.3f seconds", seconds)
        return func.strftime(_FORMAT, "now", modifier, type_=String).concat(literal("000"))

    def seconds_until(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the difference of Julian days, in seconds."""
        return (func.julianday(column) - func.julianday("now")) * literal_column("86400.0")

    def check_url(self, url: URL) -> None:
        """Refuse databases in memory."""
        name = url.database or ":memory:"
        if ":memory:" in name or "mode=memory" in name or url.query.get("mode") == "memory":
            raise ConfigurationError(
                "SQLite in memory is one connection that all tasks share: a rollback in one "
                "would undo the work of another. Use a file, such as "
                "sqlite+aiosqlite:///shop.db (in tests: one in tmp_path)"
            )

    def prepare_engine(self, engine: Engine) -> None:
        """Let writers queue for the file from their first statement on.

        A transaction that has read and then wants to write fails at once when another one wrote
        in between, whatever the busy time-out: so transactions begin as writers, unless the
        connection says `semel_read_only`.
        """
        while hasattr(engine, "_proxied"):
            engine = engine._proxied  # noqa: SLF001  copies by execution_options() share listeners
        if event.contains(engine, "begin", _begin):
            return
        event.listen(engine, "connect", _connect)
        event.listen(engine, "begin", _begin)
        engine.dispose(close=False)

    def is_transient_cause(self, error: BaseException | None) -> bool:
        """Tell by the primary result code."""
        code = getattr(error, "sqlite_errorcode", None)
        return isinstance(code, int) and code & 0xFF in (_BUSY, _LOCKED, _IOERR, _FULL, _CANTOPEN)

    def insert_absent(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        *,
        stamped: Sequence[str] | Mapping[str, float] = (),
    ) -> set[tuple[Any, ...]]:
        """Insert with ON CONFLICT DO NOTHING; the wait was at the start of the transaction."""
        statement = self.absent_insert(table, stamped)
        found = connection.execute(statement, rows[0] if len(rows) == 1 else [*rows])
        return {tuple(row) for row in found}

    def make_absent_insert(self, table: Table, stamps: Mapping[str, Any]) -> Insert:
        """Return an insert that passes over what is there, and tells what it inserted."""
        statement = insert(table).values(stamps).on_conflict_do_nothing()
        return statement.returning(*table.primary_key.columns)

    def delete_some(self, table: Table, where: ColumnElement[bool], *, limit: int) -> Delete:
        """Delete by rowid: DELETE ... LIMIT is an option that few builds have."""
        number: ColumnElement[Any] = literal_column("rowid")
        some = select(number).select_from(table).where(where).limit(limit)
        return delete(table).where(number.in_(some))


def _connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "busy_timeout = 30000", "synchronous = FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        return
    read_only = options.get("semel_read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
