"""What can be wrong with a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from semel.operations.findings import Finding, error, warning

_FULL = 2


def examine(connection: Connection, *, long_open: timedelta) -> Iterator[Finding]:  # noqa: ARG001  nobody can tell here
    """Yield what is wrong with the file and the connection's settings."""
    journal = str(connection.scalar(text("PRAGMA journal_mode"))).lower()
    if journal != "wal":
        yield warning(
            "journal-mode",
            f"the file's journal mode is {journal}: readers and writers block each other",
            "PRAGMA journal_mode = WAL, on a local file system",
        )
    if int(connection.scalar(text("PRAGMA synchronous")) or 0) < _FULL:
        yield warning(
            "synchronous-commit",
            "synchronous is below FULL: a crash of the machine may lose transactions whose events "
            "are published already",
            "PRAGMA synchronous = FULL on each connection",
        )
    if connection.scalar(text("PRAGMA query_only")):
        yield error(
            "read-only", "the connection is read-only: no event can be written", "open it to write"
        )


async def probe(_engine: AsyncEngine) -> list[Finding]:
    """There is no server."""
    return []
