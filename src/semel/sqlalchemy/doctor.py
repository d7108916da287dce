"""A look at a database: what would break a promise, or make it slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect, select
from sqlalchemy.exc import DBAPIError

from semel.clock import SystemClock
from semel.errors import ConfigurationError, SchemaError, StorageError, describe
from semel.operations.findings import Finding, Severity, error, info, warning
from semel.protocols import Clock
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.dialects.doctor import doctor_of
from semel.sqlalchemy.tables import metadata

if TYPE_CHECKING:
    from semel.sqlalchemy.storage import SqlAlchemyStorage

_MAX_CLOCK_SECONDS = 5.0


async def examine_database(
    storage: SqlAlchemyStorage,
    *,
    long_open: timedelta = timedelta(minutes=5),
    clock: Clock | None = None,
) -> list[Finding]:
    """Return what is wrong with the database, worst first; raises only if it does not answer.

    A transaction that has been open for *long_open* is one of the findings.
    """
    engine = storage.engine.execution_options(semel_read_only=True)
    doctor = doctor_of(engine.dialect)
    findings: list[Finding] = []

    def look(connection: Connection) -> None:
        for part in (
            lambda: doctor.examine(connection, long_open=long_open),
            lambda: _indexes(connection),
            lambda: _clock(connection, clock or SystemClock()),
        ):
            findings.extend(_each(connection, part))

    try:
        async with engine.connect() as connection:
            await connection.run_sync(look)
    except (DBAPIError, OSError) as failure:
        raise StorageError(f"the database does not answer ({describe(failure)})") from None
    findings.extend(await doctor.probe(engine))
    findings.extend(await _schema(storage, findings))
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def _each(connection: Connection, part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """One question that the server refuses must not hide the answers to the others."""
    try:
        yield from part()
    except DBAPIError as failure:
        connection.rollback()
        if failure.connection_invalidated:
            raise
        yield info(
            "unknown", f"a question was refused ({describe(failure)})", "grant it, or ignore"
        )


async def _schema(storage: SqlAlchemyStorage, found: list[Finding]) -> list[Finding]:
    try:
        await storage.check()
    except SchemaError as failure:
        return [error("schema", str(failure), "run `semel db check` again afterwards")]
    except (ConfigurationError, StorageError, DBAPIError) as failure:
        # The server's own trouble, such as a replica, was told already.
        return [] if found else [error("server", describe(failure), "see the sentence")]
    return []


def _indexes(connection: Connection) -> Iterator[Finding]:
    there = inspect(connection)
    for table in metadata.sorted_tables:
        if not there.has_table(table.name):
            continue  # told by the check of the tables
        names = {index["name"] for index in there.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in names:
                yield error(
                    "index",
                    f"the index {index.name} on {table.name} is missing: every look at the table "
                    "reads all of it",
                    "create it as `semel db sql` shows it (CONCURRENTLY, if writers must go on)",
                )


def _clock(connection: Connection, clock: Clock) -> Iterator[Finding]:
    before = clock.now()
    theirs = connection.scalar(select(database_of(connection.dialect).now()))
    middle = before + (clock.now() - before) / 2
    seconds = abs((_instant(theirs) - middle).total_seconds())
    if seconds > _MAX_CLOCK_SECONDS:
        yield warning(
            "clock",
            f"the database's clock and that of this machine are {seconds:.0f} seconds apart: "
            "times of events and schedules are not what people expect",
            "let both follow the same time server",
        )


def _instant(value: Any) -> datetime:
    found: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
