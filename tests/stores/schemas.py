"""What a database says about its tables, complete enough to compare two of them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, text

_POSTGRES = {
    "columns": (
        "SELECT table_name, ordinal_position, column_name, data_type, character_maximum_length, "
        "is_nullable, column_default, collation_name, is_identity, identity_generation "
        "FROM information_schema.columns WHERE table_schema = current_schema()"
    ),
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname = current_schema()",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) "
    "FROM pg_constraint WHERE connamespace = current_schema()::regnamespace AND conrelid <> 0",
    "settings": "SELECT relname, relpersistence, array_to_string(reloptions, ', '), "
    "relrowsecurity FROM pg_class "
    "WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'",
    "sequences": "SELECT sequencename, data_type, start_value, increment_by, cache_size "
    "FROM pg_sequences WHERE schemaname = current_schema()",
}


def describe(connection: Connection, tables: Collection[str]) -> dict[str, Any]:
    """Return everything that is said of *tables*: columns, types, keys, indexes, collations."""
    match connection.dialect.name:
        case "sqlite":
            found = connection.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master"))
            return {
                f"{row[0]} {row[1]}": " ".join((row[3] or "").split())
                for row in found
                if row[2] in tables
            }
        case "postgresql":
            return {
                what: sorted(
                    tuple(map(str, row))
                    for row in connection.execute(text(sql))
                    if str(row[0]).removesuffix("_seq").rsplit("_", 1)[0] in tables
                    or str(row[0]) in tables
                )
                for what, sql in _POSTGRES.items()
            }
        case _:
            return {
                name: _in_order(connection.execute(text(f"SHOW CREATE TABLE {name}")).one()[1])
                for name in sorted(tables)
            }


def _in_order(sql: str) -> list[str]:
    """Keep columns as they are; keys in one order, and no position of the counter."""
    lines = [line.strip().rstrip(",") for line in sql.splitlines()]
    lines[-1] = re.sub(r" AUTO_INCREMENT=\d+", "", lines[-1])
    keys = sorted(line for line in lines if "KEY " in line)
    return [line for line in lines if line not in keys] + keys
