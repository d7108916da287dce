"""Very many rows, made by the database itself."""

from __future__ import annotations

from sqlalchemy import text

from semel.sqlalchemy.layout import DEAD_BLOCKING, HOT, PARKED
from semel.sqlalchemy.storage import SqlAlchemyStorage

#: One row in a thousand is DEAD, one in a hundred unsent, half of these parked.
DEAD_EVERY, UNSENT_EVERY = 1000, 100
DAYS = 10

# n is the number of the row. What happens seldom does not happen among the newest rows.
_OUTBOX = """
INSERT INTO outbox (sequence, id, tenant_id, topic, event_type, order_key, occurred_at, payload,
                    content_type, event_metadata, status, retry_count, error_message, created_at,
                    sent_at, last_attempt_at, partition_no, lane)
SELECT n, {id}, {tenant}, {topic}, 'e', {key}, {at}, '{{"n": 1}}', 'application/json', '{{}}',
       CASE WHEN n % {dead} = 0 THEN 'DEAD' WHEN n % {unsent} = 0 THEN 'NEW' ELSE 'SENT' END,
       0, CASE WHEN n % {dead} = 0 THEN 'PublishError: timeout' END, {at},
       CASE WHEN n % {unsent} = 0 THEN NULL ELSE {at} END,
       CASE WHEN n % {dead} = 0 THEN {at} END, n % 64,
       CASE WHEN n % {dead} = 0 THEN n % 64 + {blocking}
            WHEN n % {unsent} = 0 THEN n % 64 + CASE WHEN n % 200 = 0 THEN {parked} ELSE {hot} END
       END
FROM ({numbers}) AS numbers
"""
_INBOX = """
INSERT INTO inbox (tenant_id, consumer_name, message_id, event_type, status, attempts, received_at,
                   processed_at, reason)
SELECT {tenant}, {consumer}, {id}, 'e', CASE WHEN n % {dead} = 0 THEN 'DEAD' ELSE 'PROCESSED' END,
       1, {at}, {at}, CASE WHEN n % {dead} = 0 THEN 'ValueError: boom' END
FROM ({numbers}) AS numbers
"""


async def fill_outbox(storage: SqlAlchemyStorage, rows: int, *, sql: str = _OUTBOX) -> None:
    """Insert *rows* rows, created evenly over the last ten days, and let the planner know."""
    await _fill(storage, "outbox", sql, rows)


async def fill_inbox(storage: SqlAlchemyStorage, rows: int) -> None:
    """Insert *rows* records, processed evenly over the last ten days."""
    await _fill(storage, "inbox", _INBOX, rows)


async def _fill(storage: SqlAlchemyStorage, table: str, sql: str, rows: int) -> None:
    name = storage.engine.dialect.name
    text_of = "CAST(n AS CHAR)" if name in ("mysql", "mariadb") else "CAST(n AS TEXT)"
    # Numbers of one length: the index of ids grows at its end, which is much faster.
    long = text_of.replace("n AS", "n + 100000000 AS")
    joined = "CONCAT('{0}', {1})" if name in ("mysql", "mariadb") else "('{0}' || {1})"
    small = text_of.replace("n AS", "n % {0} AS")
    seconds = f"(({rows} - n) * {DAYS * 86400 / rows:.6f})"
    at = {
        "postgresql": f"(now() - {seconds} * interval '1 second')",
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || {seconds} || ' seconds')",
    }.get(name, f"TIMESTAMPADD(SECOND, -{seconds}, UTC_TIMESTAMP(6))")
    numbers = {
        "postgresql": f"SELECT n FROM generate_series(1, {rows}) AS s(n)",
        "sqlite": "WITH RECURSIVE s(n) AS "
        f"(SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {rows}) SELECT n FROM s",
    }.get(name, f"SELECT seq AS n FROM seq_1_to_{rows}")
    statement = sql.format(
        id=joined.format("id-", long),
        tenant=joined.format("t", small.format(5)),
        topic=joined.format("topic", small.format(7)),
        consumer=joined.format("c", small.format(4)),
        key=joined.format("k", small.format(997)),
        at=at,
        dead=DEAD_EVERY,
        unsent=UNSENT_EVERY,
        blocking=DEAD_BLOCKING,
        parked=PARKED,
        hot=HOT,
        numbers=numbers,
    )
    async with storage.engine.begin() as connection:
        await connection.execute(text(statement))
    async with storage.engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        verb = "ANALYZE TABLE" if name in ("mysql", "mariadb") else "ANALYZE"
        await connection.execute(text(f"{verb} {table}"))
