"""What the revisions are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

from alembic import op
from sqlalchemy import ColumnElement, Table, insert, inspect, literal_column, select, update
from sqlalchemy.schema import CreateIndex, CreateTable

from semel.sqlalchemy.dialects import Database, database_of
from semel.sqlalchemy.schema import control_row
from semel.sqlalchemy.tables import OutboxControl

# Fixed when the tables are made: events are distributed by it.
_LAYOUT = {"hash": "crc32", "slots": 1024, "partitions": 64}
_control = cast("Table", OutboxControl.__table__)


def to_version(version: int, **row: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Let a revision's `upgrade` make the tables those of *version*, unless they are already.

    *row* is the rest of what the control row then says.
    """

    def decorate(change: Callable[[], None]) -> Callable[[], None]:
        @wraps(change)
        def run() -> None:
            if is_offline():
                change()
                _store({**_LAYOUT, "version": version, **row})
                return
            connection = op.get_bind()
            with database_of(connection.dialect).serialize_ddl(connection):
                present = control_row(connection)
                if present.get("version", 0) < version:
                    change()
                    _store({**_LAYOUT, **present, "version": version, **row})

        return run

    return decorate


def is_offline() -> bool:
    """Tell whether SQL is written for somebody else to run."""
    return op.get_context().as_sql


def database() -> Database:
    """Return the database that the SQL is for."""
    return database_of(op.get_context().dialect)


def create(tables: Sequence[Table]) -> None:
    """Create what is missing: on some databases half of a failed attempt stays."""
    found = None if is_offline() else inspect(op.get_bind())
    for table in tables:
        present: set[str | None] = set()
        if found is not None and found.has_table(table.name):
            present = {index["name"] for index in found.get_indexes(table.name)}
        else:
            op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in present:
                op.execute(CreateIndex(index))


def fill(table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows that are missing, with one statement."""
    [key] = table.primary_key.columns
    known = set() if is_offline() else set(op.get_bind().scalars(select(key)))
    if missing := [row for row in rows if row[key.name] not in known]:
        op.execute(insert(table).values(missing))


def document(value: Any) -> ColumnElement[Any]:
    """Return JSON as a literal: a bound value could not be written into a script."""
    text = json.dumps(value).replace("'", "''")
    return literal_column(f"'{text}'")


def _store(row: dict[str, Any]) -> None:
    op.execute(update(_control).where(_control.c.name == "schema").values(value=document(row)))
