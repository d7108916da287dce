"""What can be wrong with a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.operations.findings import Finding, error, info, warning

#: Tables whose rows come and go; PostgreSQL's own thresholds are made for tables that grow.
_BUSY = ("outbox", "inbox", "idempotency")
_SCALE = 0.05
_PROBES = 3
# A prepared statement that is unknown, or there already: another server than the last time.
_LOST_STATEMENT = ("26000", "42P05")


def examine(connection: Connection, *, long_open: timedelta) -> Iterator[Finding]:
    """Yield what is wrong with the server and this database's settings."""
    found = connection.execute(
        text(
            "SELECT name, setting FROM pg_settings WHERE name IN ("
            "'synchronous_commit', 'fsync', 'full_page_writes', 'autovacuum', "
            "'default_transaction_isolation', 'default_transaction_read_only')"
        )
    )
    settings: dict[str, str] = {row[0]: row[1] for row in found}
    yield from _replica(connection, settings)
    yield from _durability(settings)
    yield from _isolation(settings)
    yield from _vacuum(connection, settings)
    yield from _indexes(connection)
    yield from _open_transactions(connection, long_open)


def _replica(connection: Connection, settings: dict[str, str]) -> Iterator[Finding]:
    if connection.scalar(text("SELECT pg_is_in_recovery()")):
        yield error(
            "replica",
            "this server is a replica: nothing can be written, and what is read is late",
            "connect to the primary",
        )
    elif settings["default_transaction_read_only"] == "on":
        yield error(
            "read-only",
            "transactions on this database are read-only: no event can be written",
            "ALTER DATABASE ... SET default_transaction_read_only = off (or ALTER ROLE ...)",
        )


def _durability(settings: dict[str, str]) -> Iterator[Finding]:
    if settings["synchronous_commit"] == "off":
        yield warning(
            "synchronous-commit",
            "synchronous_commit is off: a crash of the server may lose transactions whose events "
            "are published already",
            "ALTER DATABASE ... SET synchronous_commit = on (or ALTER ROLE ...)",
        )
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            yield error(
                name.replace("_", "-"),
                f"{name} is off: a crash of the machine may destroy the database",
                f"set {name} = on in postgresql.conf",
            )


def _isolation(settings: dict[str, str]) -> Iterator[Finding]:
    level = settings["default_transaction_isolation"]
    if level != "read committed":
        yield warning(
            "isolation",
            f"transactions run at {level.upper()} by default: those that collide at the inbox or "
            "in your tables fail at commit and are done again",
            "ALTER DATABASE ... SET default_transaction_isolation = 'read committed', "
            "and raise the level where a transaction needs it",
        )


def _vacuum(connection: Connection, settings: dict[str, str]) -> Iterator[Finding]:
    if settings["autovacuum"] == "off":
        yield error(
            "autovacuum",
            "autovacuum is off on this server: the tables grow without end and become slow",
            "set autovacuum = on in postgresql.conf",
        )
    rows = connection.execute(
        text(
            "SELECT c.relname, o.option_name, o.option_value FROM pg_class c "
            "LEFT JOIN LATERAL pg_options_to_table(c.reloptions) o ON true "
            "WHERE c.oid = ANY (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) name)"
        ),
        {"names": list(_BUSY)},
    )
    options: dict[str, dict[str, str]] = {}
    for table, name, value in rows:
        known = options.setdefault(table, {})
        if name is not None:
            known[name] = value
    for table, known in sorted(options.items()):
        if known.get("autovacuum_enabled") in ("false", "off", "0", "no"):
            yield error(
                "autovacuum",
                f"autovacuum is off for {table}: it grows without end and becomes slow",
                f"ALTER TABLE {table} RESET (autovacuum_enabled)",
            )
    large = [
        table
        for table, known in sorted(options.items())
        if float(known.get("autovacuum_vacuum_scale_factor", 1)) > _SCALE
    ]
    if large:
        names = ", ".join(large)
        yield warning(
            "autovacuum-settings",
            f"{names}: vacuumed only when a fifth of the rows is dead, as PostgreSQL does by "
            "default; these tables need it much sooner",
            "; ".join(
                f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.01, "
                "autovacuum_vacuum_threshold = 1000)"
                for table in large
            ),
        )


def _indexes(connection: Connection) -> Iterator[Finding]:
    invalid = connection.scalars(
        text(
            "SELECT i.indexrelid::regclass::text FROM pg_index i WHERE NOT i.indisvalid "
            "AND i.indrelid = ANY "
            "(SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) name)"
        ),
        {"names": list(_BUSY)},
    )
    for name in invalid:
        yield error(
            "index",
            f"the index {name} is invalid (its creation was interrupted): nothing uses it",
            f"REINDEX INDEX CONCURRENTLY {name}",
        )


def _open_transactions(connection: Connection, long_open: timedelta) -> Iterator[Finding]:
    found = connection.execute(
        text(
            "SELECT pid, state, extract(epoch FROM clock_timestamp() - xact_start) AS seconds "
            "FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
            "AND xact_start < clock_timestamp() - make_interval(secs => :seconds) "
            "ORDER BY xact_start LIMIT 5"
        ),
        {"seconds": long_open.total_seconds()},
    )
    for pid, state, seconds in found:
        yield warning(
            "long-transaction",
            f"the transaction of backend {pid} ({state}) has been open for {float(seconds):.0f} "
            "seconds: dead rows cannot be removed meanwhile, and everything becomes slower",
            f"find out what it does (pg_stat_activity), end it: SELECT pg_terminate_backend({pid})",
        )


async def probe(engine: AsyncEngine) -> list[Finding]:
    """Find out by experiment whether a pooler gives each transaction another server connection."""
    try:
        moved = await _moves(engine)
    except DBAPIError as failure:
        if getattr(failure.orig, "sqlstate", None) not in _LOST_STATEMENT:
            return [info("pooler", "whether there is a pooler could not be found out", "try again")]
        moved = True
    if not moved:
        return []
    return [
        error(
            "pooler",
            "a pooler in transaction mode stands before this server: settings of a session leak "
            "to others, LISTEN is lost, and prepared statements disappear",
            "let projectors and consumers connect to the server itself, or by a pool in session "
            "mode",
        )
    ]


async def _moves(engine: AsyncEngine) -> bool:
    single = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with single.connect() as ours, engine.connect() as other:
        for _ in range(_PROBES):
            before = await _backend(ours)
            # Takes over our server connection, if it is not ours alone, and keeps it.
            await _backend(other)
            after = await _backend(ours)
            await other.rollback()
            if after != before:
                return True
    return False


async def _backend(connection: AsyncConnection) -> int:
    pid: int = await connection.scalar(
        text("SELECT pg_backend_pid() + :zero").bindparams(bindparam("zero", 0))
    )
    return pid
