"""A member of a group on Redis Streams."""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Self
from uuid import uuid4

from redis import exceptions

from semel.errors import BusError, describe
from semel.transports import redis_scripts as scripts
from semel.transports.redis_acks import Acks
from semel.transports.redis_delivery import Entry, Lane, RedisDelivery, to_wire

_logger = logging.getLogger("semel.redis")
# One name for all members: the lease says whose a partition is, and no names are left behind.
CONSUMER = "semel"
_BLOCK_MS = 500
_PAGE = 500
_TRIM_SECONDS = 5.0
_TROUBLE = (exceptions.RedisError, OSError, TimeoutError)


class RedisSubscription:
    """Deliveries of one topic for one group, of the partitions that are leased to this member."""

    def __init__(
        self,
        client: Any,
        *,
        base: str,
        topic: str,
        group: str,
        streams: Sequence[str],
        prefetch: int,
        claim_after: float,
        keep: int | None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._prefetch = prefetch
        self._claim_after = claim_after
        self._keep_length = keep
        self._control = [f"{base}:members:{group}", f"{base}:leases:{group}"]
        self._lanes = [Lane(n, key) for n, key in enumerate(streams)]
        self._id = uuid4().hex
        self._acks = Acks(client, group, CONSUMER)
        self._scripts = {
            name: client.register_script(getattr(scripts, name))
            for name in ("TICK", "LEAVE", "READ", "RECOVER", "TRIM", "LAG")
        }
        self._ready: list[Entry] = []
        self._delayed: Counter[str] = Counter()
        self._open: set[RedisDelivery] = set()
        self._numbers = count()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._leased_until = 0.0
        self._trim_at = 0.0
        self._turn = 0
        self._joined = self._connected = self._closed = False
        self._failure: BusError | None = None

    # Subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RedisDelivery:
        while not self._closed:
            if self._failure is not None:
                raise self._failure
            entry = self._take()
            if entry is not None:
                delivery = RedisDelivery(self, entry)
                self._open.add(delivery)
                entry.lane.open += 1
                return delivery
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration

    def is_connected(self) -> bool:
        """Tell whether Redis answered when it was last asked."""
        return not self._closed and self._failure is None and self._connected

    async def lag(self) -> int | None:
        """Return how many messages the group has not acked; None before Redis 7."""
        try:
            lag = await self._call("LAG", [lane.key for lane in self._lanes], [self._group])
        except _TROUBLE as error:
            raise BusError(f"cannot read the lag: {describe(error)}") from error
        return None if lag < 0 else int(lag)

    async def close(self) -> None:
        """Stop; deliveries that were not acked go back to the broker. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._open.clear()
        unseen, self._ready = self._ready, []
        with suppress(*_TROUBLE, BusError):
            await self._acks.close()
            await self._uncount(unseen)
            if self._joined:
                await self._call("LEAVE", self._control, [self._id])

    async def start(self) -> None:
        """Create the group, or find it, and join."""
        pipe = self._client.pipeline(transaction=False)
        for lane in self._lanes:
            pipe.execute_command("XGROUP", "CREATE", lane.key, self._group, "0", "MKSTREAM")
        for answer in await pipe.execute(raise_on_error=False):
            if isinstance(answer, Exception) and not str(answer).startswith("BUSYGROUP"):
                raise answer
        self._joined = True
        await self._tick()
        self._tasks = [
            asyncio.create_task(self._keep(), name=f"semel-redis-lease-{self._topic}"),
            asyncio.create_task(self._read(), name=f"semel-redis-{self._topic}"),
        ]

    # Deliveries

    async def confirm(self, delivery: RedisDelivery) -> None:
        """Ack; true even if the partition is another's by now, for the work is done."""
        entry = self._settle(delivery)
        await self._acks.ack(entry.lane.key, entry.id)

    async def hand_back(self, delivery: RedisDelivery, delay: float) -> None:
        """Put the message back into its place; its key waits until the delay is over."""
        entry = self._settle(delivery)
        if entry.lane.token != entry.token:
            # Whoever has the partition now delivers it: another, or we again.
            entry.lane.next_pending = "-"
            return
        entry.attempt += 1
        insort(self._ready, entry)
        if delay > 0:
            self._delayed[entry.block] += 1
            asyncio.get_running_loop().call_later(delay, self._due, entry.block)
        await self._acks.count(entry.lane.key, entry.id, entry.attempt)

    def _due(self, block: str) -> None:
        self._delayed[block] -= 1
        if self._delayed[block] <= 0:
            del self._delayed[block]
        self._arrived.set()

    def _settle(self, delivery: RedisDelivery) -> Entry:
        if delivery not in self._open:
            raise BusError(
                "this delivery was acked or nacked before, or went back to the broker when its "
                "subscription closed"
            )
        self._open.discard(delivery)
        delivery.entry.lane.open -= 1
        self._arrived.set()
        self._changed.set()
        return delivery.entry

    def _take(self) -> Entry | None:
        if len(self._open) >= self._prefetch or self._now() >= self._leased_until:
            return None
        for position, entry in enumerate(self._ready):
            if not entry.lane.leaving and entry.block not in self._delayed:
                del self._ready[position]
                return entry
        return None

    # Leases

    async def _keep(self) -> None:
        while self._failure is None and not self._closed:
            await asyncio.sleep(min(0.5, self._claim_after / 6))
            try:
                await self._tick()
                await self._acks.repeat()
                await self._trim()
            except (*_TROUBLE, BusError) as error:
                # Acks that Redis has not taken yet are repeated; the leases must go on.
                self._troubled(error)

    async def _tick(self) -> None:
        """Renew our leases, take what is due to us, and give up what is due to others."""
        began = self._now()
        leaving = [lane for lane in self._lanes if lane.leaving]
        unseen = [entry for entry in self._ready if entry.lane.leaving]
        self._ready = [entry for entry in self._ready if not entry.lane.leaving]
        for entry in unseen:
            entry.lane.next_pending = "-"  # to be found again if the lane stays with us after all
        await self._uncount(unseen)
        given_up = [lane for lane in leaving if not lane.open]
        arguments = [self._id, int(self._claim_after * 1000), len(self._lanes)]
        mine, others = await self._call(
            "TICK", self._control, [*arguments, *(lane.number for lane in given_up)]
        )
        # A little less than Redis grants: its clock began before the answer came.
        self._leased_until = began + self._claim_after * 0.8
        self._connected = True
        tokens = {int(n): token.decode() for n, token in zip(mine[::2], mine[1::2], strict=True)}
        due_to_others = {int(n) for n in others}
        for lane in self._lanes:
            token = tokens.get(lane.number, "")
            if token != lane.token:
                self._ready = [entry for entry in self._ready if entry.lane is not lane]
                lane.token, lane.next_pending = token, "-"
            lane.leaving = lane.number in due_to_others
        self._arrived.set()
        self._changed.set()

    async def _uncount(self, entries: Iterable[Entry]) -> None:
        """Take back the delivery of entries that nobody saw."""
        for entry in entries:
            self._acks.count_later(entry.lane.key, entry.id, entry.attempt - 1)
        await self._acks.repeat()

    async def _trim(self) -> None:
        if self._keep_length is None or self._now() < self._trim_at:
            return
        self._trim_at = self._now() + _TRIM_SECONDS
        for lane in self._lanes:
            if lane.token:
                await self._call("TRIM", [lane.key], [self._keep_length])

    # Reading

    async def _read(self) -> None:
        # Closed is asked too: the client may take a cancellation for a lost connection.
        while self._failure is None and not self._closed:
            self._changed.clear()
            try:
                if not await self._fetch():
                    await self._wait()
            except (*_TROUBLE, BusError) as error:
                self._troubled(error)
                await asyncio.sleep(0.2)

    async def _fetch(self) -> bool:
        """Read what there is room for; False if there was nothing, or no room."""
        room = self._room()
        lanes = [lane for lane in self._lanes if lane.token and not lane.leaving]
        if room <= 0 or not lanes or self._now() >= self._leased_until:
            return False
        found = False
        for lane in lanes:
            while lane.next_pending is not None and room > 0:
                taken = await self._recover(lane, min(room, _PAGE))
                room -= taken
                found = found or taken > 0
        self._turn += 1
        turn = self._turn % len(lanes)
        lanes = [lane for lane in lanes[turn:] + lanes[:turn] if lane.next_pending is None]
        if room <= 0 or not lanes:
            return found
        asked = [(lane, lane.token) for lane in lanes]
        arguments = [item for lane, token in asked for item in (lane.number, token, lane.last_id)]
        answer = await self._call(
            "READ",
            [self._control[1], *(lane.key for lane in lanes)],
            [self._group, CONSUMER, room, *arguments],
        )
        tokens = {lane.number: token for lane, token in asked}
        for number, entries in answer:
            lane = self._lanes[int(number)]
            if entries is None:  # an earlier answer was lost
                lane.next_pending = f"({lane.last_id}"
                continue
            for identity, fields in entries:
                self._accept(lane, tokens[lane.number], identity, fields, 1)
            lane.last_id = entries[-1][0].decode()
        return found or bool(answer)

    def _room(self) -> int:
        # Not for every single place that becomes free: a round trip is worth a few.
        room = self._prefetch - len(self._open) - len(self._ready)
        return room if room >= max(1, self._prefetch // 10) else 0

    async def _recover(self, lane: Lane, room: int) -> int:
        """Take over what the lane's owners before us had not acked."""
        token, start = lane.token, lane.next_pending
        answer = await self._call(
            "RECOVER",
            [self._control[1], lane.key],
            [self._group, CONSUMER, lane.number, token, start, room],
        )
        if answer is None or lane.token != token:
            lane.next_pending = None if answer is None else lane.next_pending
            return 0
        counts, entries, last_id = answer
        before = {identity: int(times) for identity, times in counts}
        known = {entry.id for entry in self._ready if entry.lane is lane}
        known |= {d.entry.id for d in self._open if d.entry.lane is lane}
        for entry in entries:
            # An entry that somebody trimmed is gone; what we still have in hand came again.
            if entry and entry[1] is not None and entry[0].decode() not in known:
                self._accept(lane, token, entry[0], entry[1], before[entry[0]] + 1)
        lane.last_id = last_id.decode()
        lane.next_pending = f"({counts[-1][0].decode()}" if len(counts) == room else None
        return len(entries)

    def _accept(
        self, lane: Lane, token: str, identity: bytes, fields: list[bytes], attempt: int
    ) -> None:
        wire = to_wire(self._topic, fields)
        name = identity.decode()
        block = f"key {wire.key}" if wire.key is not None else f"id {lane.number} {name}"
        entry = Entry(next(self._numbers), name, lane, token, wire, attempt, block)
        if lane.token == token:
            self._ready.append(entry)
            self._arrived.set()

    async def _wait(self) -> None:
        """Return when there may be something to read."""
        lanes = [
            lane
            for lane in self._lanes
            if lane.token and not lane.leaving and lane.next_pending is None
        ]
        if not self._room() or not lanes or self._now() >= self._leased_until:
            await self._changed.wait()
            return
        places = [*(lane.key for lane in lanes), *(lane.last_id for lane in lanes)]
        options = ("COUNT", 1, "BLOCK", _BLOCK_MS, "STREAMS")
        await self._client.execute_command("XREAD", *options, *places)

    async def _call(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return await self._scripts[name](keys=list(keys), args=list(arguments))

    def _troubled(self, error: BaseException) -> None:
        if "NOGROUP" in str(error) or "no such key" in str(error):
            # Whoever iterates hears it and subscribes again, which creates what is missing.
            self._failure = BusError("the group is gone from Redis")
            self._arrived.set()
        if self._connected:
            _logger.warning("%s: Redis is in trouble: %s", self._topic, describe(error))
        self._connected = False

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
