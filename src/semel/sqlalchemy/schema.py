"""Whether the tables in the database are those that this release writes."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, inspect, select
from sqlalchemy.exc import DBAPIError

from semel.errors import SchemaError
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import OLDEST_VERSION, PARTITIONS, SCHEMA_VERSION, SLOTS
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


def control_row(connection: Connection) -> dict[str, Any]:
    """Return what the control row says of the tables; nothing if there are none yet."""
    found = inspect(connection)
    if not found.has_table(OutboxControl.__tablename__):
        if found.has_table("outbox"):
            raise SchemaError(
                "this database has a table `outbox` that is not semel's: rename it, or use "
                "another schema or database"
            )
        return {}
    # Locked, because a plain read may tell what was there when the transaction began.
    value: Any = connection.scalar(
        select(OutboxControl.value).where(OutboxControl.name == "schema").with_for_update()
    )
    return value if isinstance(value, dict) else {}


def verify_schema(value: Any) -> None:
    """Raise `SchemaError` unless *value*, the control row, describes what this code writes."""
    expected = schema_row()
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, int):
        raise SchemaError("semel's tables are incomplete: run `semel db upgrade`")
    compatible: int = value.get("compatible", version)
    if version < OLDEST_VERSION:
        raise SchemaError(
            f"semel's tables are of version {version}, this release needs version "
            f"{OLDEST_VERSION}: run `semel db upgrade`"
        )
    # Later tables say which releases can still work with them, so that one can roll out slowly.
    if compatible > SCHEMA_VERSION:
        raise SchemaError(
            f"semel's tables are of version {version}, this release knows versions up to "
            f"{SCHEMA_VERSION}: install the release that upgraded them, or a later one"
        )
    if any(value.get(name) != expected[name] for name in ("hash", "slots", "partitions")):
        raise SchemaError(
            "the control row of this database names another hash or other counts than this "
            "release uses: events would be written out of order. Run `semel db check`"
        )


def schema_row() -> dict[str, Any]:
    """Return the control row that this release writes and expects."""
    return {
        "version": SCHEMA_VERSION,
        "compatible": OLDEST_VERSION,
        "hash": "crc32",
        "slots": SLOTS,
        "partitions": PARTITIONS,
    }


def control_rows() -> dict[str, Any]:
    """Return all rows that the control table begins with."""
    return {"schema": schema_row(), "operations": 0, "pauses": [], "scope": None}
