"""The two inboxes that are compared, in a consumer's process that dies where it is told to.

`python -m tests.chaos.peers.inboxes JSON`: takes what is not acknowledged yet, key by key in order,
again and again until all is. A handler that fails leaves its message unacknowledged, as both
libraries ask for. sagaz is imported only where it is the peer: it lives in a folder of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_EFFECT = "INSERT INTO effect (grp, id, key, version, sha256) VALUES"
_FIELDS = ("grp", "id", "key", "version", "sha256")


class Trouble:
    """What goes wrong in one life: handlers that fail the first time, and a death.

    *death*: ``("gate", n)`` before the n-th effect, ``("effect", n)`` before it is committed,
    ``("commit", n)`` before it is acknowledged.
    """

    def __init__(self, death: tuple[str, int] | None) -> None:
        self._point, self._left = death or ("never", 0)
        self._failed: set[str] = set()

    def at(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def fail_at_first(self, event_id: str) -> None:
        """Raise for every tenth event, once in a life."""
        if zlib.crc32(event_id.encode()) % 10 == 0 and event_id not in self._failed:
            self._failed.add(event_id)
            raise RuntimeError("the handler had no luck")


class SagazPeer:
    """sagaz: a handler gets the payload, and writes by a connection of its own."""

    async def open(self, url: str, group: str, trouble: Trouble) -> None:
        import asyncpg
        from sagaz.core.outbox import ConsumerInbox
        from sagaz.core.storage.backends.postgresql.outbox import PostgreSQLOutboxStorage

        self._storage = PostgreSQLOutboxStorage(url)
        await self._storage.initialize()
        self._pool = await asyncpg.create_pool(url, min_size=1, max_size=2)
        self._inbox = ConsumerInbox(self._storage, group)
        self._group, self._trouble = group, trouble

    async def process(self, message: Mapping[str, Any]) -> None:
        await self._inbox.process_idempotent(
            message["id"], "list", "appended", dict(message), self._handle
        )

    async def _handle(self, payload: Mapping[str, Any]) -> bool:
        async with self._pool.acquire() as connection, connection.transaction():
            self._trouble.at("gate")
            self._trouble.fail_at_first(payload["id"])
            values = [{**payload, "grp": self._group}[name] for name in _FIELDS]
            await connection.execute(f"{_EFFECT} ($1, $2, $3, $4, $5)", *values)
            self._trouble.at("effect")
        return True

    async def close(self) -> None:
        await self._pool.close()
        await self._storage.close()


class SemelPeer:
    """semel: a handler gets the unit of work as well."""

    async def open(self, url: str, group: str, trouble: Trouble) -> None:
        from semel import ConsumerInbox, SqlAlchemyStorage

        self._storage = SqlAlchemyStorage(url.replace("://", "+asyncpg://"))
        self._inbox = ConsumerInbox(self._storage, group)
        self._group, self._trouble = group, trouble

    async def process(self, message: Mapping[str, Any]) -> None:
        await self._inbox.process_idempotent(
            message["id"], "list", "appended", dict(message), self._handle
        )

    async def _handle(self, payload: Mapping[str, Any], uow: Any) -> bool:
        from sqlalchemy import text

        self._trouble.at("gate")
        self._trouble.fail_at_first(payload["id"])
        sql = f"{_EFFECT} (:grp, :id, :key, :version, :sha256)"
        await uow.session.execute(text(sql), {**payload, "grp": self._group})
        self._trouble.at("effect")
        return True

    async def close(self) -> None:
        await self._storage.close()


async def consume(options: Mapping[str, Any]) -> None:
    """Process and acknowledge until nothing is left; some messages come again all the same."""
    messages = [json.loads(line) for line in Path(options["messages"]).read_text().splitlines()]
    acknowledged = Path(options["acknowledged"])
    done = set(acknowledged.read_text().split())
    trouble = Trouble(options["death"])
    rng = random.Random(options["seed"])
    peer = {"sagaz": SagazPeer, "semel": SemelPeer}[options["peer"]]()
    await peer.open(options["url"], options["group"], trouble)
    file = os.open(acknowledged, os.O_WRONLY | os.O_APPEND)
    while len(done) < len(messages):
        held: set[str] = set()
        for message in messages:
            again = message["id"] in done
            if message["key"] in held or (again and rng.random() > 0.1):
                continue
            try:
                await peer.process(message)
            except RuntimeError:
                held.add(message["key"])
                continue
            trouble.at("commit")
            if not again:
                os.write(file, f"{message['id']}\n".encode())
                done.add(message["id"])
    os.close(file)
    await peer.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(consume(json.loads(sys.argv[1])))
