"""How a database is read by the relay, in the portable form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Text,
    bindparam,
    select,
    text,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.types import UserDefinedType

if TYPE_CHECKING:
    from semel.relay import Read


class _Numbers(UserDefinedType[Sequence[int]]):
    """A list that stands in the statement as it is: a parameter for each takes far longer."""

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Callable[[Sequence[int]], str]:
        """Return what writes the list."""
        return lambda values: f"({', '.join(map(str, map(int, values))) or 'NULL'})"


class RowColumns:
    """The columns that the relay reads, and how they stand between SELECT and FROM."""

    def __init__(self, columns: Sequence[ColumnElement[Any]], dialect: Dialect) -> None:
        self.columns = columns
        sql = str(select(*columns).compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        self.sql = sql.partition("SELECT ")[2].rpartition("FROM ")[0].strip()


class Lanes:
    """The relay's part of a database's particularities."""

    names_are_bytes = False
    relay_isolation: str | None = None
    can_notify = False
    #: Whether the text of `fetch_lanes` stays the same, so that caching it makes sense.
    fetch_is_constant = False

    def prepare_relay(self, connection: Connection) -> None:
        """Set up a connection that the relay keeps."""

    @contextmanager
    def serialize_ddl(self, connection: Connection) -> Iterator[None]:
        """Let only one process at a time create tables."""
        yield

    def seconds_until(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return how many seconds of the database's clock are left until *column*."""
        raise NotImplementedError

    def as_text(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return a JSON column as the text that was stored."""
        return type_coerce(column, Text)

    def document(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return JSON text as a value to store."""
        return text

    def is_any(self, column: ColumnElement[Any], values: Sequence[int]) -> ColumnElement[bool]:
        """Return the condition that *column* is one of many numbers."""
        numbers = bindparam(None, values, type_=_Numbers(), literal_execute=True)
        return column.op("IN", is_comparison=True, return_type=Boolean())(numbers)

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
        """Read several lanes, each with its floor and limit; return tuples of the columns."""
        parameters: dict[str, Any] = {}
        conditions = ""
        if tenant_id is not None:
            conditions += " AND tenant_id = :tenant"
            parameters["tenant"] = self._name(tenant_id)
        for name, values in (("topic", skip_topics), ("tenant_id", skip_tenants)):
            if values:
                marks = []
                for number, value in enumerate(sorted(values)):
                    parameters[f"{name}_{number}"] = self._name(value)
                    marks.append(f":{name}_{number}")
                conditions += f" AND {name} NOT IN ({', '.join(marks)})"
        lanes = []
        for read in reads:
            known = ", ".join(str(int(number)) for number in read.known)
            beyond = f" AND sequence NOT IN ({known})" if known else ""
            lanes.append(
                f"FROM outbox WHERE lane = {int(read.partition)} AND sequence > {int(read.floor)}"
                f"{beyond}{conditions} ORDER BY sequence LIMIT {int(read.limit)}"
            )
        statement = text(self.select_lanes(columns.sql, lanes)).columns(*columns.columns)
        rows = (await connection.execute(statement, parameters)).all()
        # Here, not there: each lane is in order already, and a database would make a table of all.
        return sorted(rows, key=itemgetter(0))

    def part_of_union(self, statement: Select[Any], *, name: str) -> Select[Any]:
        """Return a select that has a LIMIT as a part of a union."""
        return select(statement.subquery(name))

    def select_lanes(self, columns: str, lanes: Sequence[str]) -> str:
        """Return one query of *lanes*, each of which has a LIMIT of its own."""
        # Numbers first: rows would be copied from each part to the whole.
        parts = " UNION ALL ".join(f"SELECT * FROM (SELECT sequence {lane})" for lane in lanes)  # noqa: S608  integers and constants
        return f"SELECT {columns} FROM outbox WHERE sequence IN ({parts})"  # noqa: S608  the same

    def _name(self, value: str) -> str | bytes:
        return value.encode() if self.names_are_bytes else value

    async def busy_partitions(
        self, connection: AsyncConnection, partitions: Collection[int]
    ) -> Collection[int]:
        """Return the partitions with writers whose rows may be invisible yet."""
        return ()

    async def notify(self, connection: AsyncConnection, channel: str) -> None:
        """Wake the listeners of other processes."""

    async def listen(self, engine: AsyncEngine, channel: str, callback: Callable[[], None]) -> None:
        """Call *callback* for each notification, until the connection ends."""
