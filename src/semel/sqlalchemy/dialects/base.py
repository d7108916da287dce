"""What may differ from database to database."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    BigInteger,
    Connection,
    DateTime,
    Delete,
    Engine,
    Insert,
    LargeBinary,
    Select,
    String,
    Table,
    Text,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeoutError
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import TypeEngine

from semel.sqlalchemy.dialects.lanes import Lanes

if TYPE_CHECKING:
    from semel.sqlalchemy.rows import Plan

_CHUNK = 500
_logger = logging.getLogger("semel.outbox")


class Database(Lanes, ABC):
    """The portable behaviour; subclasses override what their database does otherwise."""

    instants_have_zone = False
    documents_are_parsed = False
    # Whether a plain read may miss what an insert has just collided with.
    collisions_need_locking_reads = False
    # Of the connections whose transactions semel begins and ends by itself.
    own_transaction_options: Mapping[str, Any] = {"isolation_level": "READ COMMITTED"}
    # Of those whose transactions have one statement each: isolation matters little, and its
    # change would cost more round trips than the statement.
    single_statement_options: Mapping[str, Any] = {}

    def name_type(self, length: int) -> TypeEngine[Any]:
        """Return a type of text that compares byte for byte."""
        return String(length)

    def instant_type(self) -> TypeEngine[Any]:
        """Return a type of instants to the microsecond."""
        return DateTime()

    def document_type(self) -> TypeEngine[Any]:
        """Return a type that keeps JSON text as it is."""
        return Text()

    def position_type(self) -> TypeEngine[Any]:
        """Return a 64-bit integer that can be issued by the database."""
        return BigInteger()

    def bytes_type(self) -> TypeEngine[Any]:
        """Return a type of unlimited bytes."""
        return LargeBinary()

    @abstractmethod
    def now(self) -> ColumnElement[Any]:
        """Return the database's clock at this moment (not at the start of the transaction)."""

    @abstractmethod
    def later(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """Return the database's clock plus *seconds* (may be negative)."""

    def check_url(self, url: URL) -> None:
        """Raise `ConfigurationError` for an address that cannot work."""

    def prepare_engine(self, engine: Engine) -> None:
        """Set up connections of an engine that semel uses; called once per engine."""

    def check_server(self, connection: Connection) -> None:
        """Raise `ConfigurationError` for a server on which the promises would not hold."""

    def storage_settings(self, tables: Collection[str] | None = None) -> Sequence[str]:
        """Return statements that set how *tables*, or all, are stored and cleaned up."""
        return ()

    separates_tenants = False

    def tenant_policies(
        self, tables: list[str], *, tenant_role: str, relay_role: str
    ) -> Iterable[str]:
        """Return statements that let *tenant_role* see one tenant's rows, *relay_role* all."""
        return ()

    def announce_tenant(self, connection: Connection, tenant_id: str) -> None:
        """Say whose rows this transaction may see, where the database wants to know."""

    def check_sequence(self, connection: Connection) -> None:
        """Raise `SchemaError` if numbers are not issued one by one, above all that exist."""

    def warn_of_lost_commits(self, setting: str) -> None:
        """Say aloud what a crash of the server may do under *setting*."""
        _logger.warning(
            "%s: a crash of the server may lose transactions whose events are published already",
            setting,
        )

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Tell whether a statement failed because a table or column does not exist."""
        text = str(error.orig).lower()
        return "no such table" in text or "no such column" in text

    def write_events(
        self, connection: Connection, plan: Plan, table: Table, *, unless: Collection[str] = ()
    ) -> bool:
        """Lock the plan's slots in ascending order, then insert its rows, at the commit's tail.

        Inserts nothing and returns False if the table has an id of *unless*.
        """
        ids = list(unless)
        for start in range(0, len(ids), _CHUNK):
            known = select(table.c.id).where(table.c.id.in_(ids[start : start + _CHUNK]))
            if connection.scalar(known.limit(1)) is not None:
                return False
        statement = insert(table).values(created_at=self.now()).inline()
        connection.execute(statement, plan.values())
        return True

    def is_transient(self, error: BaseException) -> bool:
        """Tell errors after which the whole transaction may be tried again.

        Deadlocks, serialization failures, lock time-outs, and whatever says that the server is
        gone, full or not yet there. None of them says anything about the message.
        """
        if isinstance(error, DBAPIError):
            return error.connection_invalidated or self.is_transient_cause(error.orig)
        # Drivers let some errors of connecting through as they are.
        return isinstance(error, OSError | PoolTimeoutError) or self.is_transient_cause(error)

    @abstractmethod
    def is_transient_cause(self, error: BaseException | None) -> bool:
        """Tell the same of an exception as the driver raised it."""

    def lock_guards(self) -> Sequence[ColumnElement[Any]]:
        """Return columns that a locking SELECT adds, so that a lost host cannot hold its locks."""
        return ()

    def stamps(self, stamped: Sequence[str] | Mapping[str, float]) -> dict[str, Any]:
        """Return the values of columns that the database's clock fills."""
        if isinstance(stamped, Mapping):
            return {name: self.later(seconds) for name, seconds in stamped.items()}
        return dict.fromkeys(stamped, self.now())

    def absent_insert(self, table: Table, stamped: Sequence[str] | Mapping[str, float]) -> Insert:
        """Return the statement of `insert_absent`, made once: making it takes longer than it."""
        pairs = tuple(stamped.items()) if isinstance(stamped, Mapping) else tuple(stamped)
        return _absent_insert(self, table, pairs)

    def make_absent_insert(self, table: Table, stamps: Mapping[str, Any]) -> Insert:
        """Return an insert of rows that may be there already."""
        return insert(table).values(stamps)

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert many rows that have the same columns, in bounded multi-row statements."""
        connection.execute(insert(table), [*rows])

    @abstractmethod
    def insert_absent(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        *,
        stamped: Sequence[str] | Mapping[str, float] = (),
    ) -> set[tuple[Any, ...]]:
        """Insert the rows whose primary keys are absent, and return those keys.

        The *stamped* columns get the database's clock, plus seconds if it is a mapping.
        Waits for every transaction that holds one of the keys uncommitted. Rows are locked in
        the given order. A key that is there already leaves the transaction usable.
        """

    def by_index(self, statement: Select[Any], table: Table, index: str) -> Select[Any]:
        """Let *statement* read *table* along *index*, where the planner would sort instead."""
        return statement

    @abstractmethod
    def delete_some(self, table: Table, where: ColumnElement[bool], *, limit: int) -> Delete:
        """Return a statement that deletes at most *limit* of the rows that match."""


@lru_cache(maxsize=256)
def _absent_insert(
    database: Database, table: Table, stamped: tuple[str, ...] | tuple[tuple[str, float], ...]
) -> Insert:
    stamps: dict[str, Any] = {}
    for item in stamped:
        stamps |= database.stamps([item] if isinstance(item, str) else dict([item]))
    return database.make_absent_insert(table, stamps)
