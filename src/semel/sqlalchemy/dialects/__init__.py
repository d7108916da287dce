"""The only place where a database is named: one file each, all with the same methods."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect

from semel.errors import ConfigurationError
from semel.sqlalchemy.dialects.base import Database
from semel.sqlalchemy.dialects.lanes import RowColumns
from semel.sqlalchemy.dialects.mysql import MySql
from semel.sqlalchemy.dialects.postgresql import PostgreSql
from semel.sqlalchemy.dialects.sqlite import Sqlite

__all__ = [
    "DATABASES",
    "DRIVER_EXTRAS",
    "URL_HINT",
    "Database",
    "RowColumns",
    "database_of",
    "partial_index_options",
    "table_options",
]

DRIVER_EXTRAS = {
    "asyncpg": "postgres",
    "psycopg": "psycopg",
    "asyncmy": "mysql",
    "aiosqlite": "sqlite",
}
URL_HINT = (
    "use postgresql+asyncpg://user:password@host/database, postgresql+psycopg://..., "
    "mysql+asyncmy://... or sqlite+aiosqlite:///file.db"
)

#: By the names that SQLAlchemy gives them.
DATABASES: dict[str, Database] = {
    "postgresql": PostgreSql(),
    "mysql": MySql(),
    "mariadb": MySql(),
    "sqlite": Sqlite(),
}


def database_of(dialect: Dialect) -> Database:
    """Return what is particular to the database behind *dialect*."""
    try:
        return DATABASES[dialect.name]
    except KeyError:
        raise ConfigurationError(
            f"semel does not support {dialect.name}: use PostgreSQL, MySQL, MariaDB or SQLite"
        ) from None


def table_options(*, numbered: bool = False) -> dict[str, Any]:
    """Keyword arguments that a table needs on some database."""
    return {
        # Without it SQLite gives the numbers of deleted rows to new ones: order would break.
        "sqlite_autoincrement": numbered,
        "mysql_engine": "InnoDB",
        "mysql_charset": "utf8mb4",
        "mariadb_engine": "InnoDB",
        "mariadb_charset": "utf8mb4",
    }


def partial_index_options(where: Any) -> dict[str, Any]:
    """Keyword arguments of an index that covers only rows that match *where*, where possible."""
    return {"postgresql_where": where, "sqlite_where": where}
