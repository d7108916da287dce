"""What can be wrong with a MySQL or MariaDB server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from semel.operations.findings import Finding, error, info, warning

_NAMES = (
    "sql_mode",
    "auto_increment_increment",
    "wsrep_on",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "log_bin",
    "read_only",
    "tx_read_only",
    "transaction_read_only",
    "tx_isolation",
    "transaction_isolation",
)


def examine(connection: Connection, *, long_open: timedelta) -> Iterator[Finding]:
    """Yield what is wrong with the server and the session's settings."""
    listed = ", ".join(f"'{name}'" for name in _NAMES)
    found = connection.execute(text(f"SHOW VARIABLES WHERE Variable_name IN ({listed})"))
    variables: dict[str, str] = {row[0]: row[1] for row in found}
    yield from _strictness(variables)
    yield from _durability(variables)
    yield from _writing(variables)
    yield from _open_transactions(connection, long_open)


def _strictness(variables: dict[str, str]) -> Iterator[Finding]:
    if "STRICT_" not in variables.get("sql_mode", ""):
        yield error(
            "strict-mode",
            "the server is not in strict mode: it cuts long values silently",
            "add STRICT_TRANS_TABLES to sql_mode",
        )
    if variables.get("auto_increment_increment", "1") != "1" or variables.get("wsrep_on") in (
        "ON",
        "1",
    ):
        yield error(
            "multi-primary",
            "this is a multi-primary cluster: the numbers that it issues are not in the order of "
            "commits, so events would be published out of order",
            "use a server with one primary",
        )


def _durability(variables: dict[str, str]) -> Iterator[Finding]:
    flush = variables.get("innodb_flush_log_at_trx_commit", "1")
    if flush not in ("1", "3"):
        yield warning(
            "synchronous-commit",
            f"innodb_flush_log_at_trx_commit is {flush}: a crash may lose transactions whose "
            "events are published already",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )
    if variables.get("log_bin") == "ON" and variables.get("sync_binlog") == "0":
        yield warning(
            "sync-binlog",
            "sync_binlog is 0: after a crash replicas may miss transactions whose events are "
            "published already",
            "SET GLOBAL sync_binlog = 1",
        )


def _writing(variables: dict[str, str]) -> Iterator[Finding]:
    if variables.get("read_only", "OFF") not in ("OFF", "0"):
        yield error("replica", "the server is read-only: a replica", "connect to the primary")
    session = variables.get("transaction_read_only", variables.get("tx_read_only", "OFF"))
    if session not in ("OFF", "0"):
        yield error(
            "read-only",
            "transactions are read-only: no event can be written",
            "SET GLOBAL transaction_read_only = OFF, or take it out of the connection's settings",
        )
    level = variables.get("transaction_isolation", variables.get("tx_isolation", ""))
    if level in ("SERIALIZABLE", "READ-UNCOMMITTED"):
        yield warning(
            "isolation",
            f"transactions run at {level} by default: "
            + (
                "plain reads take locks, and transactions deadlock"
                if level == "SERIALIZABLE"
                else "handlers see what may never be committed"
            ),
            "use READ-COMMITTED or REPEATABLE-READ",
        )


def _open_transactions(connection: Connection, long_open: timedelta) -> Iterator[Finding]:
    try:
        found = connection.execute(
            text(
                "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()) "
                "FROM information_schema.innodb_trx "
                "WHERE trx_mysql_thread_id <> CONNECTION_ID() "
                "AND trx_started < NOW() - INTERVAL :seconds SECOND ORDER BY trx_started LIMIT 5"
            ),
            {"seconds": int(long_open.total_seconds())},
        ).all()
    except DBAPIError:
        yield info(
            "long-transaction",
            "open transactions could not be looked at",
            "GRANT PROCESS ON *.* to this user",
        )
        return
    for thread, seconds in found:
        yield warning(
            "long-transaction",
            f"the transaction of thread {thread} has been open for {seconds} seconds: old "
            "versions of rows pile up meanwhile, and everything becomes slower",
            f"find out what it does (SHOW PROCESSLIST), end it: KILL {thread}",
        )


async def probe(_engine: AsyncEngine) -> list[Finding]:
    """No pooler of MySQL is known to break anything."""
    return []
