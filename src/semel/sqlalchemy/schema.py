"""Whether the tables in the database are those that this release writes."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, select
from sqlalchemy.exc import DBAPIError

from semel.errors import SchemaError
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import PARTITIONS, SCHEMA_VERSION, SLOTS
from semel.sqlalchemy.tables import OutboxControl

# By dialect, which an engine shares with those made of it by execution_options().
_checked: WeakKeyDictionary[Dialect, bool] = WeakKeyDictionary()


def check_schema(connection: Connection) -> None:
    """Raise `SchemaError` unless the tables are there and of this version; looks once."""
    if _checked.get(connection.dialect):
        return
    check_version(connection)
    database_of(connection.dialect).check_server(connection)
    _checked[connection.dialect] = True


def check_version(connection: Connection) -> None:
    """The same of the tables alone, with a look at every call."""
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


def control_rows() -> dict[str, Any]:
    """Return all rows that the control table begins with."""
    return {"schema": schema_row(), "operations": 0, "pauses": [], "scope": None}
