"""The relay as the outbox document describes it: SKIP LOCKED, PUBLISHING, SENT, its indexes.

Batches are larger than its 100, and it never sleeps between them.
"""

from __future__ import annotations

import json
import time
from uuid import uuid4

import asyncpg
from driving import BUSINESS, DSN, INSERT, PAYLOAD, TEXT, main, writes

TABLE = """
CREATE TABLE outbox (
    id VARCHAR(36) PRIMARY KEY, tenant_id VARCHAR(64) NOT NULL, aggregate_id VARCHAR(128),
    aggregate_type VARCHAR(100), topic VARCHAR(128) NOT NULL,
    occurred_at TIMESTAMP WITH TIME ZONE, payload JSON NOT NULL, event_metadata JSON NOT NULL,
    routing_key VARCHAR(100), schema_id VARCHAR(128), schema_version INTEGER DEFAULT 1,
    status VARCHAR(10) DEFAULT 'NEW', retry_count INTEGER DEFAULT 0,
    retry_after TIMESTAMP WITH TIME ZONE, error_message VARCHAR(500),
    created_at TIMESTAMP WITH TIME ZONE DEFAULT NOW()
);
CREATE INDEX ix_tenant_id_status ON outbox(tenant_id, status);
CREATE INDEX ix_outbox_processing ON outbox(status, retry_after);
CREATE INDEX ix_outbox_topic ON outbox(topic);
"""
ADD = """
INSERT INTO outbox (id, tenant_id, aggregate_id, topic, occurred_at, payload, event_metadata)
VALUES ($1, 'default', $2, 'orders', now(), $3, '{}')
"""
CLAIM = """
UPDATE outbox SET status = 'PUBLISHING' WHERE id IN (
    SELECT id FROM outbox
    WHERE tenant_id = 'default'
      AND (status = 'NEW' OR (status = 'FAILED' AND retry_after <= now()))
    ORDER BY created_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
RETURNING *
"""
SENT = "UPDATE outbox SET status = 'SENT' WHERE id = ANY($1)"


async def relay(events: int) -> dict[str, float]:
    connection = await asyncpg.connect(DSN)
    await connection.execute(TABLE)
    body = json.dumps(PAYLOAD)
    await connection.executemany(ADD, [(str(uuid4()), f"k{n}", body) for n in range(events)])
    await connection.execute("VACUUM ANALYZE outbox")
    done, began = 0, time.perf_counter()
    while rows := await connection.fetch(CLAIM):
        done += len(rows)
        await connection.execute(SENT, [row["id"] for row in rows])
    assert done == events
    return {"": events / (time.perf_counter() - began)}


async def write(transactions: int, connections: int) -> dict[str, float]:
    pool = await asyncpg.create_pool(DSN, min_size=connections, max_size=connections)
    await pool.execute(BUSINESS)
    await pool.execute(TABLE)
    body = json.dumps(PAYLOAD)

    async def transaction(events: int, number: int) -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, TEXT[:200])
            if events:
                rows = [(str(uuid4()), f"k{number}", body) for _ in range(events)]
                await connection.executemany(ADD, rows)

    return await writes(transaction, transactions, connections)


main(relay=relay, write=write)
