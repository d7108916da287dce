"""PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BigInteger,
    Connection,
    DateTime,
    Delete,
    Dialect,
    Float,
    Insert,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY, JSON, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import TypeEngine

from semel.errors import ConfigurationError, SchemaError
from semel.sqlalchemy.dialects import asyncpg
from semel.sqlalchemy.dialects.base import Database
from semel.sqlalchemy.dialects.lanes import RowColumns
from semel.sqlalchemy.dialects.postgresql_sql import (
    COLUMNS,
    DDL_SLOT,
    GLOBAL_SLOT,
    HELD_SQL,
    LOCK_CLASS,
    LOCK_SECONDS,
    MAX_SLOTS,
    QUEUE_ALL,
    RELAY_SETTINGS,
    REPEATED,
    SETTINGS,
    TRY_ALL,
    fetch_sql,
    write_sql,
)
from semel.sqlalchemy.dialects.postgresql_tenants import SETTING, policies
from semel.sqlalchemy.layout import PARTITIONS

if TYPE_CHECKING:
    from semel.relay import Read
    from semel.sqlalchemy.rows import Plan

_DIALECT: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
_TRIES = 20
_LOCK_NOT_AVAILABLE = "55P03"

# Serialization failure, deadlock, lock time-out, shut down or starting; a replica after failover.
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57P05", "25006"})
# Classes: connection, insufficient resources, system error.
_TRANSIENT_CLASSES = ("08", "53", "58")


@cache
def _insert_sql(table: Table, names: tuple[str, ...]) -> str:
    """Insert from arrays: a statement has at most 32,767 arguments, and this is the fastest."""
    kinds = {name: table.c[name].type.compile(dialect=_DIALECT) for name in names}
    arrays = ", ".join(
        f"CAST(:{name} AS {'TEXT' if kind == 'JSON' else kind}[])" for name, kind in kinds.items()
    )
    values = ", ".join(
        f"CAST(n.{name} AS JSON)" if kind == "JSON" else f"n.{name}" for name, kind in kinds.items()
    )
    listed = ", ".join(names)
    return (
        f"INSERT INTO {table.name} ({listed}) SELECT {values} FROM unnest({arrays}) AS n({listed})"  # noqa: S608  constants only
    )


def _array(name: str, values: Sequence[Any]) -> list[Any] | None:
    """Return the array of a column, short where all rows have one value: elements cost time."""
    first = values[0]
    if (first is None or name in REPEATED) and values.count(first) == len(values):
        return None if first is None else [first]
    return list(values)


class PostgreSql(Database):
    """PostgreSQL 13 and later, by asyncpg or psycopg."""

    instants_have_zone = True
    documents_are_parsed = True

    def __init__(self) -> None:
        self._deferrable: WeakKeyDictionary[Dialect, bool] = WeakKeyDictionary()

    def instant_type(self) -> TypeEngine[Any]:
        """Return timestamptz."""
        return DateTime(timezone=True)

    def document_type(self) -> TypeEngine[Any]:
        """Return json, which keeps the text; jsonb rewrites it."""
        return JSON(none_as_null=True)

    def now(self) -> ColumnElement[Any]:
        """Return the clock; `now()` would be the start of the transaction."""
        return func.clock_timestamp(type_=DateTime(timezone=True))

    def later(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """Return the clock plus *seconds*."""
        if not isinstance(seconds, ColumnElement):
            seconds = bindparam(None, seconds, type_=Float)
        step: ColumnElement[Any] = literal_column("interval '1 second'") * seconds
        return self.now() + step

    # Neither driver sends anything to switch it: BEGIN and COMMIT are saved.
    single_statement_options: Mapping[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    relay_isolation = "READ COMMITTED"
    can_notify = True
    fetch_is_constant = True

    def seconds_until(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the difference of instants in seconds."""
        return cast(func.extract("epoch", column - self.now()), Float)

    def as_text(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return json as text; without the cast a driver would parse it."""
        return cast(column, Text)

    def document(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return text as json."""
        return cast(text, JSON)

    def is_any(self, column: ColumnElement[Any], values: Sequence[int]) -> ColumnElement[bool]:
        """Pass the numbers as one array."""
        return column == func.any(literal(list(values), ARRAY(BigInteger)))

    def prepare_relay(self, connection: Connection) -> None:
        """Settle isolation and plans of a connection that the relay keeps."""
        connection.execute(
            text("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        )
        connection.execute(text(RELAY_SETTINGS))

    @contextmanager
    def serialize_ddl(self, connection: Connection) -> Iterator[None]:
        """Hold a lock until the transaction ends."""
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, {DDL_SLOT})"))
        yield

    async def fetch_lanes(
        self,
        connection: AsyncConnection,
        columns: RowColumns,
        reads: Sequence[Read],
        *,
        tenant_id: str | None,
        skip_topics: Collection[str],
        skip_tenants: Collection[str],
    ) -> Sequence[Any]:
        """Probe the index once per lane, in one statement whose text never changes."""
        parameters = {
            "lanes": [read.partition for read in reads],
            "floors": [read.floor for read in reads],
            "limits": [read.limit for read in reads],
            "known": [number for read in reads for number in read.known],
            "topics": sorted(skip_topics),
            "tenants": sorted(skip_tenants),
            "tenant": tenant_id,
        }
        sql = fetch_sql(columns.sql)
        if asyncpg.drives(connection):
            sql = asyncpg.numbered(sql, tuple(parameters))
            return await asyncpg.fetch(connection, sql, parameters.values())
        return (await connection.execute(text(sql), parameters)).all()

    async def busy_partitions(
        self, connection: AsyncConnection, partitions: Collection[int]
    ) -> Collection[int]:
        """Return the partitions of slots that somebody holds."""
        held = await connection.execute(text(HELD_SQL))
        numbers = {row.slot for row in held}
        if GLOBAL_SLOT in numbers:
            return partitions
        return {slot % PARTITIONS for slot in numbers if slot >= 0} & set(partitions)

    async def notify(self, connection: AsyncConnection, channel: str) -> None:
        """Send an empty notification."""
        if asyncpg.drives(connection):
            await asyncpg.execute(connection, f"NOTIFY {channel}")
        else:
            await connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": channel})

    async def listen(self, engine: AsyncEngine, channel: str, callback: Callable[[], None]) -> None:
        """Listen on a connection of its own."""
        connection = await engine.connect()
        try:
            connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
            raw = await connection.get_raw_connection()
            driver: Any = raw.driver_connection
            if engine.dialect.driver == "asyncpg":
                ended = asyncio.Event()
                driver.add_termination_listener(lambda *_: ended.set())
                await driver.add_listener(channel, lambda *_: callback())
                await ended.wait()
            else:
                await connection.execute(text(f"LISTEN {channel}"))
                async for _ in driver.notifies():
                    callback()
        finally:
            await connection.invalidate()
            await connection.close()

    def check_server(self, connection: Connection) -> None:
        """Refuse a replica; remember whether constraints are deferred to the commit."""
        recovering, deferrable, synchronous = connection.execute(
            text(
                "SELECT pg_is_in_recovery(), "
                "EXISTS (SELECT 1 FROM pg_constraint WHERE condeferrable), "
                "current_setting('synchronous_commit')"
            )
        ).one()
        if recovering:
            raise ConfigurationError("this PostgreSQL server is a replica: connect to the primary")
        if synchronous == "off":
            self.warn_of_lost_commits("synchronous_commit is off")
        self._deferrable[connection.dialect] = bool(deferrable)

    def storage_settings(self, tables: Collection[str] | None = None) -> Sequence[str]:
        """Vacuum big tables early; leave room in rows that change all the time."""
        return [sql for name, sql in SETTINGS.items() if tables is None or name in tables]

    separates_tenants = True

    def tenant_policies(
        self, tables: list[str], *, tenant_role: str, relay_role: str
    ) -> Iterable[str]:
        """Grant rights and create policies."""
        return policies(tables, tenant_role=tenant_role, relay_role=relay_role)

    def announce_tenant(self, connection: Connection, tenant_id: str) -> None:
        """Set what the policies compare with, until the transaction ends."""
        connection.execute(select(func.set_config(SETTING, tenant_id, True)))

    def check_sequence(self, connection: Connection) -> None:
        """Check the identity's cache and position."""
        cache, last, highest = connection.execute(
            text(
                "SELECT s.seqcache, "
                "pg_sequence_last_value(CAST(s.seqrelid AS regclass)), "
                "(SELECT max(sequence) FROM outbox) "
                "FROM pg_sequence s "
                "WHERE s.seqrelid = CAST(pg_get_serial_sequence('outbox', 'sequence') AS regclass)"
            )
        ).one()
        if cache != 1:
            raise SchemaError(
                f"the sequence of outbox hands out {cache} numbers at once, so their order is not "
                "that of the commits: ALTER TABLE outbox ALTER COLUMN sequence SET CACHE 1"
            )
        if (highest or 0) > (last or 0):
            raise SchemaError(
                "outbox has rows above its sequence (after a restore?): set the sequence to "
                f"{highest} with setval()"
            )

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Tell undefined tables and columns."""
        return getattr(error.orig, "sqlstate", None) in ("42P01", "42703")

    def write_events(
        self, connection: Connection, plan: Plan, table: Table, *, unless: Collection[str] = ()
    ) -> bool:
        """Lock, look and insert with one statement."""
        if self._deferrable.get(connection.dialect):
            # Checked at COMMIT they would be checked, and wait, while the slots are held.
            connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        slots, modes = self._locks(connection, plan)
        *columns, _ordered = zip(*plan.rows, strict=True)
        given = [*columns, plan.partitions, plan.lanes]
        arrays = [_array(*pair) for pair in zip(COLUMNS, given, strict=True)]
        arguments = [slots, modes, *arrays]
        names: tuple[str, ...] = ("slots", "modes", *COLUMNS)
        if unless:
            names, arguments = (*names, "unless"), [*arguments, list(unless)]
        sql = write_sql(table.name, guarded=bool(unless))
        if asyncpg.drives(connection) and self._in_transaction(connection):
            status = asyncpg.run(connection, asyncpg.numbered(sql, names), arguments)
            return status != "INSERT 0 0"
        return connection.execute(text(sql), dict(zip(names, arguments, strict=True))).rowcount != 0

    def _locks(self, connection: Connection, plan: Plan) -> tuple[list[int], list[bool]]:
        if len(plan.slots) <= MAX_SLOTS:
            slots = [GLOBAL_SLOT, *plan.slots]
            return slots, [False] + [plan.exclusive] * len(plan.slots)
        # So many locks would fill the server's lock table: one lock instead that excludes all.
        self._lock_all(connection)
        return [GLOBAL_SLOT], [True]

    def _lock_all(self, connection: Connection) -> None:
        """Take the global slot without holding up everybody while somebody is slow.

        All other writers would queue behind us: so we try, and queue only for moments, without
        which a steady stream of writers would never let us in.
        """
        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            for _ in range(_TRIES):
                if connection.scalar(text(TRY_ALL)):
                    return
                wait = random.uniform(0.001, 0.02)  # noqa: S311  no secret
                connection.execute(text("SELECT pg_sleep(:s)"), {"s": wait})
            connection.exec_driver_sql("SAVEPOINT semel_queue")
            try:
                connection.execute(text(QUEUE_ALL))
            except DBAPIError as error:
                late = time.monotonic() > give_up
                if late or getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
                connection.exec_driver_sql("ROLLBACK TO SAVEPOINT semel_queue")
            else:
                return

    def _in_transaction(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        return bool(driver.is_in_transaction())

    def is_transient_cause(self, error: BaseException | None) -> bool:
        """Tell by SQLSTATE; there is none when psycopg cannot connect, or asyncpg is cut off."""
        state = getattr(error, "sqlstate", None)
        if isinstance(state, str):
            return state in _TRANSIENT or state.startswith(_TRANSIENT_CLASSES)
        return asyncpg.is_lost(error) or (
            type(error).__module__.startswith("psycopg")
            and any(base.__name__ == "OperationalError" for base in type(error).__mro__)
        )

    def lock_guards(self) -> Sequence[ColumnElement[Any]]:
        """End a session that stays idle in this transaction."""
        return [
            literal_column("set_config('idle_in_transaction_session_timeout', '30s', true)", Text)
        ]

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert with one statement, whatever the number of rows."""
        names = tuple(rows[0])
        columns = {name: [row[name] for row in rows] for name in names}
        connection.execute(text(_insert_sql(table, names)), columns)

    def insert_absent(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        *,
        stamped: Sequence[str] | Mapping[str, float] = (),
    ) -> set[tuple[Any, ...]]:
        """Insert with ON CONFLICT DO NOTHING: a failed insert would abort the transaction."""
        statement = self.absent_insert(table, stamped)
        found = connection.execute(statement, rows[0] if len(rows) == 1 else [*rows])
        return {tuple(row) for row in found}

    def make_absent_insert(self, table: Table, stamps: Mapping[str, Any]) -> Insert:
        """Return an insert that passes over what is there, and tells what it inserted."""
        statement = insert(table).values(stamps).on_conflict_do_nothing()
        return statement.returning(*table.primary_key.columns)

    def delete_some(self, table: Table, where: ColumnElement[bool], *, limit: int) -> Delete:
        """Delete by row address: PostgreSQL has no DELETE ... LIMIT."""
        address: ColumnElement[Any] = literal_column("ctid")
        some = select(address).select_from(table).where(where).limit(limit)
        return delete(table).where(address == func.any(func.array(some.scalar_subquery())))
