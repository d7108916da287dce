"""The statements that are written out for PostgreSQL."""

from __future__ import annotations

from functools import cache

# Advisory locks are shared by the whole database: our class keeps them apart from others'.
LOCK_CLASS = 0x53454D4C
GLOBAL_SLOT = -1
DDL_SLOT = -2
MAX_SLOTS = 32
LOCK_SECONDS = 10
_LOCK_TIMEOUT = f"{LOCK_SECONDS}s"
_IDLE_TIMEOUT = "30s"

TRY_ALL = f"SELECT pg_try_advisory_xact_lock({LOCK_CLASS}, {GLOBAL_SLOT})"
QUEUE_ALL = f"""
WITH settings AS MATERIALIZED (SELECT set_config('lock_timeout', '50ms', true) AS done)
SELECT CAST(pg_advisory_xact_lock({LOCK_CLASS}, {GLOBAL_SLOT}) AS text) FROM settings
"""  # noqa: S608  constants only

# By default a fifth of a table may be dead before it is vacuumed, and the index of lanes with it.
_GROWING = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05"
)
# A few rows that change every second: a new version fits beside the old one, and no index changes.
_BUSY = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000"
)
SETTINGS = {
    name: f"ALTER TABLE {name} SET ({settings})"
    for settings, names in (
        (_GROWING, ("outbox", "inbox", "idempotency", "bus_message")),
        (_BUSY, ("outbox_lease", "outbox_instance", "outbox_control")),
        (_BUSY, ("bus_partition", "bus_group", "bus_member")),
    )
    for name in names
}

# A generic plan compares each row with each known number one by one. Once the table is large the
# server would compile the fetch, each time, for longer than it runs. A window is sorted in memory.
# And a process that is frozen in the middle of a transaction must not keep others out.
_RELAY = {
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
    "work_mem": "32MB",
    "idle_in_transaction_session_timeout": "5s",
}
RELAY_SETTINGS = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', false)" for name, value in _RELAY.items()
)

COLUMNS = {
    "id": "text",
    "tenant_id": "text",
    "aggregate_id": "text",
    "aggregate_type": "text",
    "topic": "text",
    "event_type": "text",
    "order_key": "text",
    "routing_key": "text",
    "occurred_at": "timestamptz",
    "payload": "text",
    "payload_bytes": "bytea",
    "content_type": "text",
    "event_metadata": "text",
    "schema_id": "text",
    "schema_version": "int",
    "available_at": "timestamptz",
    "partition_no": "smallint",
    "lane": "smallint",
}
# Never NULL, and mostly the same in all rows of a transaction: an array of one element will do.
REPEATED = frozenset(
    {"tenant_id", "topic", "event_type", "content_type", "event_metadata", "schema_version"}
)
_DOCUMENTS = ("payload", "event_metadata")

# A bulk writer holds the global slot exclusively; all others hold it shared, which says nothing.
HELD_SQL = f"""
SELECT CAST(CASE WHEN objid > 2147483647 THEN CAST(objid AS bigint) - 4294967296
                 ELSE CAST(objid AS bigint) END AS int) AS slot
FROM pg_locks
WHERE locktype = 'advisory' AND classid = {LOCK_CLASS} AND objsubid = 2 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (CAST(objid AS bigint) < 2147483648 OR mode = 'ExclusiveLock')
"""  # noqa: S608  constants only


@cache
def fetch_sql(columns: str) -> str:
    """Probe the index of lanes once per lane.

    No equality, and the lane in the order: else the planner, where it knows few lanes, reads the
    whole table in the order of its primary key, once for each lane.
    """
    return f"""
    SELECT lane_rows.*
    FROM unnest(CAST(:lanes AS smallint[]), CAST(:floors AS bigint[]), CAST(:limits AS int[]))
         AS reads(lane, floor, size)
    CROSS JOIN LATERAL (
        SELECT {columns}
        FROM outbox
        WHERE (outbox.lane, outbox.sequence) > (reads.lane, reads.floor)
          AND outbox.lane <= reads.lane
          AND outbox.sequence <> ALL(CAST(:known AS bigint[]))
          AND outbox.topic <> ALL(CAST(:topics AS text[]))
          AND outbox.tenant_id <> ALL(CAST(:tenants AS text[]))
          AND (CAST(:tenant AS text) IS NULL OR outbox.tenant_id = CAST(:tenant AS text))
        ORDER BY outbox.lane, outbox.sequence
        LIMIT reads.size
    ) AS lane_rows
    ORDER BY lane_rows.sequence
    """  # noqa: S608  constants only


@cache
def write_sql(table: str, *, guarded: bool = False) -> str:
    """Lock and insert in one round trip; *guarded*: nothing, if an id of `unless` is there.

    The locks are taken by a materialised step that the insert joins as one row, so that no
    sequence number is drawn before the last lock is held.
    """
    # One by one: planned before the table was known to grow, `= ANY` would read all of it for ever.
    guard = f"""WHERE NOT EXISTS (
        SELECT FROM unnest(CAST(:unless AS text[])) AS wanted(id)
        WHERE (SELECT known.id FROM {table} AS known WHERE known.id = wanted.id) IS NOT NULL
    )"""  # noqa: S608  constants only
    arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in COLUMNS.items())
    # unnest() fills short arrays with NULL.
    found = {
        name: f"COALESCE(n.{name}, (CAST(:{name} AS {kind}[]))[1])"
        if name in REPEATED
        else f"n.{name}"
        for name, kind in COLUMNS.items()
    }
    values = ", ".join(
        f"CAST({value} AS json)" if name in _DOCUMENTS else value for name, value in found.items()
    )
    return f"""
    WITH settings AS MATERIALIZED (
        SELECT set_config('lock_timeout', '{_LOCK_TIMEOUT}', true),
               set_config('idle_in_transaction_session_timeout', '{_IDLE_TIMEOUT}', true)
    ), slots AS MATERIALIZED (
        SELECT s.slot, s.exclusive
        FROM unnest(CAST(:slots AS int[]), CAST(:modes AS boolean[])) AS s(slot, exclusive),
             settings
        ORDER BY s.slot
    ), held AS MATERIALIZED (
        SELECT count(CASE WHEN slots.exclusive
                          THEN CAST(pg_advisory_xact_lock({LOCK_CLASS}, slots.slot) AS text)
                          ELSE CAST(pg_advisory_xact_lock_shared({LOCK_CLASS}, slots.slot) AS text)
                     END) AS locks
        FROM slots
    )
    INSERT INTO {table} ({", ".join(COLUMNS)}, created_at)
    SELECT {values}, clock_timestamp()
    FROM held, unnest({arrays}) WITH ORDINALITY AS n({", ".join(COLUMNS)}, ordinal)
    {guard if guarded else ""}
    ORDER BY n.ordinal
    """  # noqa: S608  constants only
