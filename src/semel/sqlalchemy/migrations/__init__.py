"""semel's tables as Alembic revisions: their own branch, their own version table.

The version that counts is in the control row, where the revisions write it and every process
reads it. So it does not matter who made the tables: `semel db create`, `semel db upgrade`, or a
service's own Alembic that lists our folder in its `version_locations`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from semel.errors import ConfigurationError, missing_extra
from semel.sqlalchemy import bus_tables as _bus_tables  # noqa: F401  part of the metadata
from semel.sqlalchemy.dialects import DATABASES, database_of
from semel.sqlalchemy.layout import SCHEMA_VERSION
from semel.sqlalchemy.schema import control_row
from semel.sqlalchemy.tables import metadata

try:
    from alembic import command
    from alembic.config import Config
except ModuleNotFoundError as error:
    raise ConfigurationError(missing_extra("upgrading semel's tables", "migrations")) from error

__all__ = ["BRANCH", "VERSION_TABLE", "include_name", "render", "revision_of", "upgrade"]

BRANCH = "semel"
VERSION_TABLE = "semel_version"


def upgrade(connection: Connection, version: int = SCHEMA_VERSION) -> None:
    """Create the tables, or bring those of an earlier release up to *version*.

    Of several processes that do it at the same time one does, and the others wait for it.
    """
    config, target = _config(), revision_of(version)
    config.attributes["connection"] = connection
    with database_of(connection.dialect).serialize_ddl(connection):
        present = control_row(connection).get("version", 0)
        # Alembic's table follows the control row: who made the tables may not have written it.
        known = min(present, SCHEMA_VERSION)
        command.stamp(config, revision_of(known) if known else "base", purge=True)
        if present < version:
            command.upgrade(config, target)


def render(dialect: str, *, since: int = 0) -> str:
    """Return the SQL that makes the tables, or upgrades those of version *since*."""
    if dialect not in DATABASES:
        raise ConfigurationError(f"no dialect {dialect!r}: choose one of {', '.join(DATABASES)}")
    output = io.StringIO()
    config = _config(output)
    config.attributes["dialect"] = dialect
    target = revision_of(SCHEMA_VERSION)
    command.upgrade(config, f"{revision_of(since)}:{target}" if since else target, sql=True)
    return output.getvalue()


def revision_of(version: int) -> str:
    """Return the id of the revision that makes the tables those of *version*."""
    if not 1 <= version <= SCHEMA_VERSION:
        raise ConfigurationError(f"there are versions 1 to {SCHEMA_VERSION}, and no {version}")
    return f"{BRANCH}_{version:04}"


def include_name(name: str | None, kind: str, parents: Mapping[str, Any]) -> bool:
    """Keep a service's autogenerate away from semel's tables.

    For `context.configure(include_name=...)` in its env.py: without it, autogenerate would drop
    what is not in the service's own metadata.
    """
    if kind != "table" or parents.get("schema_name") is not None:
        return True
    return name != VERSION_TABLE and name not in metadata.tables


def _config(output: io.StringIO | None = None) -> Config:
    config = Config() if output is None else Config(output_buffer=output)
    folder = str(Path(__file__).parent).replace("%", "%%")
    config.set_main_option("script_location", folder)
    return config
