"""MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Delete,
    Float,
    Select,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import TypeEngine

from semel.errors import ConfigurationError, SchemaError, StorageError
from semel.sqlalchemy.dialects.base import Database
from semel.sqlalchemy.layout import PARTITIONS, SLOTS

if TYPE_CHECKING:
    from semel.sqlalchemy.rows import Plan

_NOW = "UTC_TIMESTAMP(6)"
_LOCK_SECONDS = 10
_DUPLICATE = 1062
# Lock time-out, deadlock, row changed since the snapshot (MariaDB), NOWAIT; too many connections;
# shutting down; read-only after a failover; killed; and the client's own errors of the connection.
_TRANSIENT = frozenset(
    {1205, 1213, 1020, 3572, 1040, 1203, 1053, 1290, 1836, 1927, 4031}
    | {1152, 1158, 1159, 1160, 1161, 1184, 2002, 2003, 2006, 2013, 2055}
)


class MySql(Database):
    """MySQL 8 and MariaDB 10.6 and later, by asyncmy."""

    names_are_bytes = True
    collisions_need_locking_reads = True

    def name_type(self, length: int) -> TypeEngine[Any]:
        """Return bytes: every default collation takes `a` for `A`, or pads with spaces."""
        return mysql.VARBINARY(4 * length)

    def instant_type(self) -> TypeEngine[Any]:
        """Return a datetime with microseconds."""
        return mysql.DATETIME(fsp=6)

    def document_type(self) -> TypeEngine[Any]:
        """Return text: MySQL's JSON type sorts keys and rewrites numbers."""
        return mysql.LONGTEXT()

    def bytes_type(self) -> TypeEngine[Any]:
        """Return a blob that is not cut at 64 KiB."""
        return mysql.LONGBLOB()

    def now(self) -> ColumnElement[Any]:
        """Return the clock in UTC."""
        return literal_column(_NOW, mysql.DATETIME(fsp=6))

    def later(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """Return the clock plus *seconds*."""
        if not isinstance(seconds, ColumnElement):
            seconds = bindparam(None, seconds, type_=Float)
        return func.timestampadd(
            literal_column("MICROSECOND"),
            func.round(seconds * literal_column("1000000")),
            self.now(),
            type_=mysql.DATETIME(fsp=6),
        )

    relay_isolation = "READ COMMITTED"

    def seconds_until(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the difference in microseconds, divided."""
        return func.timestampdiff(
            literal_column("MICROSECOND"), self.now(), column
        ) / literal_column("1000000.0")

    def prepare_relay(self, connection: Connection) -> None:
        """Keep gap locks out of the relay's statements."""
        connection.execute(text("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        if getattr(connection.dialect, "is_mariadb", False):
            # A process that is frozen in the middle of a transaction must not keep others out.
            connection.execute(text("SET SESSION idle_transaction_timeout = 5"))

    @contextmanager
    def serialize_ddl(self, connection: Connection) -> Iterator[None]:
        """Hold a named lock: DDL commits, so a transaction's lock would be gone."""
        # Names are shared by all databases of a server, and have at most 64 characters.
        name = "CONCAT('semel.', MD5(DATABASE()))"
        if connection.scalar(text(f"SELECT GET_LOCK({name}, 60)")) != 1:
            raise StorageError("another process has been creating semel's tables for a minute")
        try:
            yield
            # Whoever gets the lock next must see the rows too; tables are committed already.
            connection.execute(text("COMMIT"))
        finally:
            connection.execute(text(f"SELECT RELEASE_LOCK({name})"))

    async def busy_partitions(
        self, connection: AsyncConnection, partitions: Collection[int]
    ) -> Collection[int]:
        """Return the partitions of slots whose rows somebody holds."""
        chosen = set(partitions)
        slots = [slot for slot in range(SLOTS) if slot % PARTITIONS in chosen]
        numbers = ", ".join(map(str, slots))
        free = await connection.execute(
            text(f"SELECT slot FROM outbox_slot WHERE slot IN ({numbers}) FOR UPDATE SKIP LOCKED")  # noqa: S608  integers
        )
        return {slot % PARTITIONS for slot in set(slots) - {row.slot for row in free}}

    def check_server(self, connection: Connection) -> None:
        """Refuse servers that cut long values or number rows in several places."""
        found = connection.execute(
            text(
                "SHOW VARIABLES WHERE Variable_name IN "
                "('sql_mode', 'auto_increment_increment', 'wsrep_on', "
                "'innodb_flush_log_at_trx_commit')"
            )
        )
        variables: dict[str, str] = {row[0]: row[1] for row in found}
        if "STRICT_" not in variables.get("sql_mode", ""):
            raise ConfigurationError(
                "this server is not in strict mode and would cut long values silently: "
                "add STRICT_TRANS_TABLES to sql_mode"
            )
        if variables.get("auto_increment_increment", "1") != "1" or variables.get(
            "wsrep_on", "OFF"
        ) in ("ON", "1"):
            raise ConfigurationError(
                "this is a multi-primary cluster: the numbers that it issues are not in the "
                "order of commits, so events would be published out of order"
            )
        if (flush := variables.get("innodb_flush_log_at_trx_commit", "1")) not in ("1", "3"):
            self.warn_of_lost_commits(f"innodb_flush_log_at_trx_commit is {flush}")

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Tell undefined tables and columns."""
        arguments: Any = getattr(error.orig, "args", ())
        return bool(arguments) and arguments[0] in (1146, 1054)

    def write_events(
        self, connection: Connection, plan: Plan, table: Table, *, unless: Collection[str] = ()
    ) -> bool:
        """Lock, then insert; all values are bound, or drivers would send row after row."""
        created, known = self._lock_slots(connection, plan, unless)
        if not known:
            connection.execute(insert(table).inline(), plan.values(created_at=created))
        return not known

    def _lock_slots(
        self, connection: Connection, plan: Plan, unless: Collection[str]
    ) -> tuple[datetime, bool]:
        """Lock the slots' rows, of which InnoDB keeps many in little space.

        Returns the time, and whether the outbox has an id of *unless*.
        """
        numbers = ", ".join(str(int(slot)) for slot in plan.slots)
        mode = "FOR UPDATE" if plan.exclusive else "LOCK IN SHARE MODE"
        if getattr(connection.dialect, "is_mariadb", False):
            mode += f" WAIT {_LOCK_SECONDS}"
        known = "EXISTS (SELECT 1 FROM outbox WHERE id IN :unless)" if unless else "0"
        statement = text(
            f"SELECT slot, {_NOW}, {known} FROM outbox_slot "  # noqa: S608  integers
            f"WHERE slot IN ({numbers}) ORDER BY slot {mode}"
        )
        if unless:
            statement = statement.bindparams(bindparam("unless", expanding=True))
        found = connection.execute(statement, {"unless": list(unless)} if unless else {}).all()
        if len(found) != len(plan.slots):
            raise SchemaError(
                "rows are missing in outbox_slot, so writers would not exclude each other: "
                "run `semel db check`"
            )
        now: datetime = found[0][1]
        return now.replace(tzinfo=UTC), bool(found[0][2])

    def is_transient_cause(self, error: BaseException | None) -> bool:
        """Tell by the error number."""
        return _number(error) in _TRANSIENT

    def insert_absent(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        *,
        stamped: Sequence[str] | Mapping[str, float] = (),
    ) -> set[tuple[Any, ...]]:
        """Insert plainly; only error 1062 on the primary key is a duplicate.

        INSERT IGNORE would also swallow cut values and broken references, and with FOUND_ROWS,
        which SQLAlchemy sets, ON DUPLICATE KEY reports a row for a duplicate too.
        """
        names = [column.name for column in table.primary_key.columns]
        statement = self.absent_insert(table, stamped)
        inserted: set[tuple[Any, ...]] = set()
        if len(rows) > 1:
            stamps = self.stamps(stamped)
            try:
                connection.execute(insert(table).values([{**row, **stamps} for row in rows]))
            except IntegrityError as error:
                # The statement is undone as a whole: find out row by row which were there.
                # One read of all of them would lock the gaps that others insert into.
                _raise_unless_duplicate(error)
            else:
                return {tuple(row[name] for name in names) for row in rows}
        for row in rows:
            try:
                connection.execute(statement, row)
            except IntegrityError as error:
                _raise_unless_duplicate(error)
            else:
                inserted.add(tuple(row[name] for name in names))
        return inserted

    def part_of_union(self, statement: Select[Any], *, name: str) -> Select[Any]:
        """Return it as it is: a subselect with texts would become a temporary table on disk."""
        return statement

    def select_lanes(self, columns: str, lanes: Sequence[str]) -> str:
        """Join without tables in between, for the same reason."""
        return " UNION ALL ".join(f"(SELECT {columns} {lane})" for lane in lanes)

    def by_index(self, statement: Select[Any], table: Table, index: str) -> Select[Any]:
        """Force the index: for a LIMIT of many rows the planner sorts the whole table."""
        return statement.with_hint(table, f"FORCE INDEX ({index})")

    def delete_some(self, table: Table, where: ColumnElement[bool], *, limit: int) -> Delete:
        """Delete with a limit."""
        statement = delete(table).where(where)
        return statement.with_dialect_options(mysql_limit=limit, mariadb_limit=limit)


def _number(error: BaseException | None) -> int | None:
    arguments = getattr(error, "args", ())
    number = arguments[0] if arguments else None
    return number if isinstance(number, int) else None


def _raise_unless_duplicate(error: IntegrityError) -> None:
    # Triggers may insert elsewhere: MySQL names the table, MariaDB only the key.
    # Not str(error.orig): it shows the text as Python would write it, escaped if it has quotes.
    arguments: tuple[Any, ...] = getattr(error.orig, "args", ())
    if _number(error.orig) != _DUPLICATE or not str(arguments[-1]).endswith("PRIMARY'"):
        raise error
