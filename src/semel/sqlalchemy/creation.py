"""Making the tables without Alembic, and looking whether they are whole."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, MetaData, Table, event, func, insert, inspect, select, text

from semel.errors import SchemaError
from semel.sqlalchemy import bus_tables as _bus_tables  # noqa: F401  part of the metadata
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import SCHEMA_VERSION, SLOTS
from semel.sqlalchemy.schema import control_row, control_rows
from semel.sqlalchemy.tables import OutboxControl, OutboxSlot, metadata


def create_schema(connection: Connection) -> None:
    """Create missing tables and fill the control tables; leaves existing ones alone."""
    with database_of(connection.dialect).serialize_ddl(connection):
        _create(connection)


def _create(connection: Connection) -> None:
    # Tables of an earlier release are for `upgrade`: new ones among them would be in its way.
    if control_row(connection).get("version", SCHEMA_VERSION) >= SCHEMA_VERSION:
        metadata.create_all(connection)
    known = set(connection.scalars(select(OutboxSlot.slot)))
    missing = [{"slot": slot} for slot in range(SLOTS) if slot not in known]
    if missing:
        connection.execute(insert(cast("Table", OutboxSlot.__table__)), missing)
    names = set(connection.scalars(select(OutboxControl.name)))
    rows = [
        {"name": name, "value": value}
        for name, value in control_rows().items()
        if name not in names
    ]
    if rows:
        connection.execute(insert(cast("Table", OutboxControl.__table__)), rows)


@event.listens_for(metadata, "after_create")
def _set_storage(_metadata: MetaData, connection: Connection, *, tables: Any, **_: Any) -> None:
    names = {table.name for table in tables}
    for statement in database_of(connection.dialect).storage_settings(names):
        connection.execute(text(statement))


def examine(connection: Connection) -> None:
    """Raise `SchemaError` for tables that would break the order of events."""
    found = inspect(connection)
    for table in metadata.sorted_tables:
        if not found.has_table(table.name):
            raise SchemaError(f"the table {table.name} is missing: run `semel db create`")
        columns = {column["name"] for column in found.get_columns(table.name)}
        missing = sorted(column.name for column in table.columns if column.name not in columns)
        if missing:
            raise SchemaError(
                f"{table.name} has no column {', '.join(missing)}: run `semel db upgrade`"
            )
    slots = connection.scalar(select(func.count()).select_from(OutboxSlot))
    if slots != SLOTS:
        raise SchemaError(
            f"outbox_slot has {slots} rows instead of {SLOTS}, so writers would not exclude each "
            "other: run `semel db create`"
        )
    database_of(connection.dialect).check_sequence(connection)
