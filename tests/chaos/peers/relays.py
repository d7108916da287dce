"""The two relays that are compared, each with the producer that writes its outbox.

`python -m tests.chaos.peers.relays JSON` is a relay's process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from sqlalchemy import select, text

from semel.projector import OutboxProjector
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxLease, OutboxRecord
from tests.chaos.peers.broker import FileBroker, digest
from tests.chaos.peers.seed_relay import SCHEMA, SeedRelay

# Both have the same; a production's seconds are tenths here, and so are those of the lease.
SETTINGS: dict[str, Any] = {
    "batch_size": 20,
    "max_retry_attempts": 5,
    "sleep_busy": 0.02,
    "sleep_idle": 0.2,
    "retry_base_seconds": 0.1,
}
_SEMEL: dict[str, Any] = {"sweep_seconds": 0.5, "breaker_max_seconds": 0.5}
_LEDGER = "CREATE TABLE ledger (id VARCHAR(36), key VARCHAR(36), version INT, sha256 CHAR(64))"
_COMMITTED = "INSERT INTO ledger VALUES (:id, :key, :version, :sha256)"
_POSITIONAL = "INSERT INTO ledger VALUES ($1, $2, $3, $4)"

Event = Mapping[str, Any]


class Producer(Protocol):
    """Writes events and their ledger in one transaction; reads both back.

    *taken_up*: the statuses of rows that the relay would still do something about.
    """

    @property
    def taken_up(self) -> AbstractSet[str]: ...

    async def prepare(self) -> None: ...

    async def write(self, events: Sequence[Event], *, commit: bool) -> None: ...

    async def rows(self) -> list[dict[str, Any]]: ...

    async def ledger(self) -> list[dict[str, Any]]: ...

    async def leases(self) -> int: ...

    async def close(self) -> None: ...


def event(key: str, version: int) -> Event:
    payload = {"key": key, "version": version}
    return payload | {"id": f"{key}-{version:04d}", "payload": payload, "sha256": digest(payload)}


class SeedProducer:
    """Inserts into the outbox of document 001."""

    taken_up = frozenset({"NEW", "FAILED"})

    def __init__(self, url: str) -> None:
        self._url = url.replace("+asyncpg", "")
        self._pool: asyncpg.Pool | None = None

    async def prepare(self) -> None:
        self._pool = await asyncpg.create_pool(self._url, min_size=1, max_size=2)
        await self._pool.execute(SCHEMA + _LEDGER)

    async def write(self, events: Sequence[Event], *, commit: bool) -> None:
        assert self._pool is not None
        sql = "INSERT INTO outbox (id, tenant_id, aggregate_id, topic, payload)"
        async with self._pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            for each in events:
                values = (each["id"], "default", each["key"], "list", json.dumps(each["payload"]))
                await connection.execute(f"{sql} VALUES ($1, $2, $3, $4, $5)", *values)
                committed = [each[name] for name in ("id", "key", "version", "sha256")]
                await connection.execute(_POSITIONAL, *committed)
            await (transaction.commit() if commit else transaction.rollback())

    async def rows(self) -> list[dict[str, Any]]:
        sql = "SELECT id, status, retry_count AS attempts, error_message AS reason FROM outbox"
        return await self._all(sql)

    async def ledger(self) -> list[dict[str, Any]]:
        return await self._all("SELECT * FROM ledger")

    async def leases(self) -> int:
        return 0

    async def _all(self, sql: str) -> list[dict[str, Any]]:
        assert self._pool is not None
        return [dict(row) for row in await self._pool.fetch(sql)]

    async def close(self) -> None:
        assert self._pool is not None
        await self._pool.close()


class SemelProducer:
    """Adds through semel's unit of work."""

    taken_up = frozenset({"NEW", "FAILED", "PUBLISHING"})

    def __init__(self, url: str) -> None:
        self._storage = SqlAlchemyStorage(url)

    async def prepare(self) -> None:
        await self._storage.initialize()
        async with self._storage.engine.begin() as connection:
            await connection.execute(text(_LEDGER))

    async def write(self, events: Sequence[Event], *, commit: bool) -> None:
        async with self._storage.unit_of_work() as uow:
            for each in events:
                await uow.outbox.add(
                    "list",
                    each["payload"],
                    event_type="appended",
                    key=each["key"],
                    event_id=each["id"],
                )
                committed = {name: each[name] for name in ("id", "key", "version", "sha256")}
                await uow.session.execute(text(_COMMITTED), committed)
            if commit:
                await uow.commit()

    async def rows(self) -> list[dict[str, Any]]:
        columns = OutboxRecord.__table__.c
        query = select(
            columns.id,
            columns.status,
            columns.retry_count.label("attempts"),
            columns.error_message.label("reason"),
        )
        return await self._all(query)

    async def ledger(self) -> list[dict[str, Any]]:
        return await self._all(text("SELECT * FROM ledger"))

    async def leases(self) -> int:
        query = select(OutboxLease.partition_no).where(OutboxLease.owner.is_not(None))
        return len(await self._all(query))

    async def _all(self, query: Any) -> list[dict[str, Any]]:
        async with self._storage.engine.connect() as connection:
            return [dict(row._mapping) for row in await connection.execute(query)]

    async def close(self) -> None:
        await self._storage.close()


PRODUCERS: Mapping[str, Callable[[str], Producer]] = {"seed": SeedProducer, "semel": SemelProducer}


async def _run(options: Mapping[str, Any]) -> None:
    bus: Any = FileBroker(Path(options["wire"]), **options["broker"])  # publishes, no more
    if options["peer"] == "seed":
        async with asyncpg.create_pool(options["url"].replace("+asyncpg", ""), min_size=1) as pool:
            await _until_told(SeedRelay(pool, bus, **SETTINGS))
    else:
        async with SqlAlchemyStorage(options["url"]) as storage:
            lease = options["lease_seconds"]
            config = OutboxProjectorConfig(**SETTINGS, **_SEMEL, lease_seconds=lease)
            await _until_told(
                OutboxProjector(message_bus=bus, store=storage.relay, tenant_id=None, config=config)
            )
    await bus.close()


async def _until_told(relay: Any) -> None:
    stopping: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(relay.run_forever())
    loop.add_signal_handler(
        signal.SIGTERM, lambda: stopping.append(asyncio.create_task(relay.stop()))
    )
    await running
    loop.remove_signal_handler(signal.SIGTERM)
    await asyncio.gather(*stopping)


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(_run(json.loads(sys.argv[1])))
