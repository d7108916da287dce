"""Acks on their way to Redis, many in one round trip."""

from __future__ import annotations

import asyncio

from redis import exceptions
from redis.asyncio import Redis

from semel.errors import BusError, describe

_TROUBLE = (exceptions.RedisError, OSError, TimeoutError)


class Acks:
    """Sends what piles up while the batch before is under way.

    What fails is kept: an entry that is done must not wait for the next owner to be done again.
    """

    def __init__(self, client: Redis, group: str, consumer: str) -> None:
        self._client = client
        self._group = group
        self._consumer = consumer
        self._done: set[tuple[str, str]] = set()
        self._counts: dict[tuple[str, str], int] = {}
        self._sending: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def ack(self, key: str, identity: str) -> None:
        """Return once Redis has taken note; raise `BusError` if it has not yet."""
        self._done.add((key, identity))
        self._counts.pop((key, identity), None)
        await self._flush()

    async def count(self, key: str, identity: str, attempt: int) -> None:
        """Write down how often an entry was delivered."""
        self.count_later(key, identity, attempt)
        await self._flush()

    def count_later(self, key: str, identity: str, attempt: int) -> None:
        """The same, with the next batch."""
        self._counts[key, identity] = attempt

    async def repeat(self) -> None:
        """Send what is left."""
        if self._done or self._counts:
            await self._flush()

    async def close(self) -> None:
        """Send what is left, for the last time."""
        await self.repeat()

    async def _flush(self) -> None:
        # Shielded: others wait for the same batch, and half an answer would spoil a connection.
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
            task = self._sending
        else:
            if self._next is None or self._next.done():
                self._next = asyncio.create_task(self._after(self._sending))
            task = self._next
        try:
            await asyncio.shield(task)
        except _TROUBLE as error:
            raise BusError(f"Redis did not take the ack yet: {describe(error)}") from error

    async def _after(self, before: asyncio.Task[None]) -> None:
        await asyncio.wait({before})
        self._sending, self._next = self._next, None
        await self._send()

    async def _send(self) -> None:
        await asyncio.sleep(0)  # whoever is about to ack joins this batch
        done, self._done = self._done, set()
        counts, self._counts = self._counts, {}
        if not done and not counts:
            return
        by_key: dict[str, list[str]] = {}
        for key, identity in done:
            by_key.setdefault(key, []).append(identity)
        pipe = self._client.pipeline(transaction=False)
        for key, identities in by_key.items():
            pipe.execute_command("XACK", key, self._group, *identities)
        for (key, identity), attempt in counts.items():
            command = ("XCLAIM", key, self._group, self._consumer, 0, identity)
            times = ("RETRYCOUNT", max(0, attempt), "JUSTID")
            pipe.execute_command(*command, *times, parse_justid=True)
        try:
            await pipe.execute()
        except BaseException:
            self._done |= done
            self._counts = {**counts, **self._counts}
            raise
