"""The relay of document 001, as it is described there: a baseline for comparison.

Take rows that are NEW, or FAILED and due, with `FOR UPDATE SKIP LOCKED`; make them PUBLISHING;
publish; then SENT, or FAILED and one attempt more, or DEAD when there are no more; sleep. The table
and the settings are the document's. Where it is silent, this is the kind reading: one outcome per
message, an exponential pause between attempts, rows in the order of their creation.

The claim commits before the broker is asked: otherwise nobody would ever see PUBLISHING.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from semel.envelope import MessageEnvelope

SCHEMA = """
CREATE TABLE outbox (
    id VARCHAR(36) PRIMARY KEY,
    tenant_id VARCHAR(64) NOT NULL,
    aggregate_id VARCHAR(128),
    topic VARCHAR(128) NOT NULL,
    payload JSON NOT NULL,
    status VARCHAR(10) DEFAULT 'NEW',
    retry_count INTEGER DEFAULT 0,
    retry_after TIMESTAMP WITH TIME ZONE,
    error_message VARCHAR(500),
    created_at TIMESTAMP WITH TIME ZONE DEFAULT NOW()
);
CREATE INDEX ix_tenant_id_status ON outbox(tenant_id, status);
CREATE INDEX ix_outbox_processing ON outbox(status, retry_after);
"""
_CLAIM = """
SELECT id, tenant_id, aggregate_id, topic, payload, retry_count FROM outbox
WHERE tenant_id = $1 AND (status = 'NEW' OR (status = 'FAILED' AND retry_after <= now()))
ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_FAIL = """
UPDATE outbox SET status = $2, retry_count = $3, error_message = $4,
    retry_after = now() + make_interval(secs => $5)
WHERE id = $1
"""


class SeedRelay:
    """Moves rows to a bus, as document 001 says."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        bus: Any,
        *,
        batch_size: int = 100,
        max_retry_attempts: int = 5,
        sleep_busy: float = 0.1,
        sleep_idle: float = 2.0,
        retry_base_seconds: float = 1.0,
    ) -> None:
        self._pool, self._bus = pool, bus
        self._batch_size, self._attempts = batch_size, max_retry_attempts
        self._busy, self._idle = sleep_busy, sleep_idle
        self._base = retry_base_seconds
        self._stopping = asyncio.Event()

    async def run_forever(self) -> None:
        while not self._stopping.is_set():
            pause = self._busy if await self.run_once() else self._idle
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def stop(self) -> None:
        self._stopping.set()

    async def run_once(self) -> int:
        """Publish one batch, and return how many rows it had."""
        rows = await self._claim()
        if rows:
            messages = [_message(row) for row in rows]
            outcomes: Sequence[Exception | None]
            try:
                outcomes = await self._bus.publish_many(messages)
            except Exception as error:  # noqa: BLE001  the document knows success and failure only
                outcomes = [error] * len(rows)
            for row, outcome in zip(rows, outcomes, strict=True):
                await self._mark(row, outcome)
        return len(rows)

    async def _claim(self) -> list[asyncpg.Record]:
        async with self._pool.acquire() as connection, connection.transaction():
            rows: list[asyncpg.Record] = await connection.fetch(_CLAIM, "default", self._batch_size)
            ids = [row["id"] for row in rows]
            sql = "UPDATE outbox SET status = 'PUBLISHING' WHERE id = ANY($1::varchar[])"
            await connection.execute(sql, ids)
            return rows

    async def _mark(self, row: asyncpg.Record, error: Exception | None) -> None:
        if error is None:
            sql = "UPDATE outbox SET status = 'SENT' WHERE id = $1"
            await self._pool.execute(sql, row["id"])
            return
        attempts = row["retry_count"] + 1
        status = "DEAD" if attempts >= self._attempts else "FAILED"
        pause = self._base * 2 ** (attempts - 1)
        await self._pool.execute(_FAIL, row["id"], status, attempts, str(error)[:500], pause)


def _message(row: asyncpg.Record) -> MessageEnvelope:
    return MessageEnvelope(
        topic=row["topic"],
        event_type="appended",
        event_id=row["id"],
        tenant_id=row["tenant_id"],
        key=row["aggregate_id"],
        payload=json.loads(row["payload"]),
    )
