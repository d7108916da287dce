"""Deliveries of a Kafka topic, in the event loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from threading import Event
from typing import Any, Self

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition, admin

from semel.errors import BusError
from semel.transports.delivery import EntryDelivery
from semel.transports.kafka_consumer import Entry, Fetcher, Partition
from semel.wire import WireMessage

_admin: Any = admin  # its types are incomplete
_CLOSE_SECONDS = 15.0
_LAG_SECONDS = 5.0
_BREATH = 64  # deliveries after which other tasks get their turn

_logger = logging.getLogger("semel.transports.kafka")


class _Lane:
    """The messages of one key that wait until a nacked one of them is due."""

    __slots__ = ("delayed", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Entry] = []
        self.delayed = 0


class KafkaSubscription:
    """One member of a consumer group; at most *prefetch* deliveries are open at a time."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        admin: Callable[[], Any],
        topic: str,
        group: str,
        prefetch: int,
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._group = group
        self._prefetch = prefetch
        self._earliest = settings.get("auto.offset.reset") == "earliest"
        self._open = 0
        self._ready: deque[Entry] = deque()
        # Nacked and due, by offset: they go before what is new.
        self._again: list[tuple[int, int, Entry]] = []
        self._lanes: dict[tuple[int, bytes | int], _Lane] = {}
        self._drains: list[tuple[Sequence[Partition], Event]] = []
        self._numbers = count()
        self._wake = asyncio.Event()
        self._closed = False
        settings = {**settings, "group.id": group}
        self._fetcher = Fetcher(settings, topic, prefetch, self._arrive, self._take_back)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryDelivery:
        if next(self._numbers) % _BREATH == 0:
            await asyncio.sleep(0)
        while not self._closed:
            entry = self._next() if self._open < self._prefetch else None
            if entry is not None:
                entry.open = True
                entry.attempt += 1
                entry.partition.open += 1
                entry.partition.handed = max(entry.partition.handed, entry.offset + 1)
                self._open += 1
                make_wire = partial(_to_wire, entry.message)
                return EntryDelivery(self, entry, entry.attempt, make_wire)
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def is_connected(self) -> bool:
        """Tell whether this member has its place in the group and a broker answers."""
        return not self._closed and self._fetcher.connected

    async def lag(self) -> int | None:
        """Return how far the group is behind, in offsets; None if the brokers do not tell."""
        if self._closed:
            return None
        try:
            return await self._ask_lag()
        except (KafkaException, TimeoutError):
            return None

    async def close(self) -> None:
        """Leave the group; deliveries that were not acked go back. Idempotent."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._fetcher.stop()
            self._ready.clear()
            self._again.clear()
            self._lanes.clear()
        done, _ = await asyncio.wait((self._fetcher.ended,), timeout=_CLOSE_SECONDS)
        if not done:
            _logger.warning("topic %s: the broker lets the consumer wait at its end", self._topic)

    def settle(self, entry: Entry, attempt: int, *, again: bool, delay: float = 0.0) -> None:
        """Take the application's word about *entry*; `BusError` if it comes too late."""
        if not entry.open or entry.attempt != attempt:
            raise BusError("this delivery was acked or nacked before")
        partition = entry.partition
        entry.open = False
        partition.open -= 1
        self._open -= 1
        late = self._closed or partition.lost
        if not late and not again:
            partition.settle(entry)
        elif not partition.revoked and not late:
            self._put_back(entry, delay)
        self._finish_drains()
        self._wake.set()
        if late and not again:
            raise BusError(
                "this delivery went back to the broker, with its partition or because its "
                "subscription closed: it comes again"
            )

    def _next(self) -> Entry | None:
        while True:
            if self._again:
                entry = heapq.heappop(self._again)[2]
            elif self._ready:
                entry = self._ready.popleft()
                self._fetcher.took(1)
            else:
                return None
            if entry.partition.revoked:
                continue
            lane = self._lanes.get(_lane_of(entry)) if self._lanes else None
            if lane is None:
                return entry
            lane.waiting.append(entry)
            self._fetcher.held += 1

    def _put_back(self, entry: Entry, delay: float) -> None:
        key = _lane_of(entry)
        if delay <= 0 and key not in self._lanes:
            heapq.heappush(self._again, (entry.offset, next(self._numbers), entry))
            return
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting.append(entry)
        self._fetcher.held += 1
        if delay > 0:
            lane.delayed += 1
            asyncio.get_running_loop().call_later(delay, self._due, key, lane)

    def _due(self, key: tuple[int, bytes | int], lane: _Lane) -> None:
        lane.delayed -= 1
        if lane.delayed or self._lanes.get(key) is not lane:
            return
        del self._lanes[key]
        self._fetcher.held -= len(lane.waiting)
        for entry in lane.waiting:
            heapq.heappush(self._again, (entry.offset, next(self._numbers), entry))
        self._wake.set()

    def _arrive(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.partition.revoked or self._closed:
                self._fetcher.took(1)
            else:
                entry.partition.entries.append(entry)
                self._ready.append(entry)
        self._wake.set()

    def _take_back(self, partitions: Sequence[Partition], drained: Event) -> None:
        before = len(self._ready)
        self._ready = deque(entry for entry in self._ready if not entry.partition.revoked)
        self._fetcher.took(before - len(self._ready))
        self._again = [item for item in self._again if not item[2].partition.revoked]
        heapq.heapify(self._again)
        for key, lane in list(self._lanes.items()):
            if lane.waiting[0].partition.revoked:
                del self._lanes[key]
                self._fetcher.held -= len(lane.waiting)
        self._drains.append((partitions, drained))
        self._finish_drains()

    def _finish_drains(self) -> None:
        for drain in list(self._drains):
            partitions, drained = drain
            if all(partition.lost or not partition.open for partition in partitions):
                drained.set()
                self._drains.remove(drain)

    async def _ask_lag(self) -> int | None:
        client, limit = self._admin(), _LAG_SECONDS
        metadata = await asyncio.to_thread(client.list_topics, self._topic, timeout=limit)
        numbers = metadata.topics[self._topic].partitions
        all_of_them = [TopicPartition(self._topic, number) for number in numbers]
        if not all_of_them:
            return None
        request = ConsumerGroupTopicPartitions(self._group, all_of_them)
        (committed,) = client.list_consumer_group_offsets([request], request_timeout=limit).values()
        first, last = (
            client.list_offsets(dict.fromkeys(all_of_them, spec), request_timeout=limit)
            for spec in (_admin.OffsetSpec.earliest(), _admin.OffsetSpec.latest())
        )
        done: dict[int, int] = {}
        try:
            for offset in (await asyncio.wrap_future(committed)).topic_partitions:
                done[offset.partition] = offset.offset
        except KafkaException as error:
            if error.args[0].name() != "GROUP_ID_NOT_FOUND":
                raise
        lag = 0
        for partition in all_of_them:
            low = (await asyncio.wrap_future(first[partition])).offset
            high = (await asyncio.wrap_future(last[partition])).offset
            own = self._fetcher.partitions.get(partition.partition)
            position = done.get(partition.partition, -1)
            if own is not None:
                position = max(position, own.position)
            if position < 0:
                position = low if self._earliest else high
            lag += max(0, high - max(low, position))
        return lag


def _lane_of(entry: Entry) -> tuple[int, bytes | int]:
    key: bytes | None = entry.message.key()
    return entry.partition.number, entry.offset if key is None else key


def _to_wire(message: Any) -> WireMessage:
    """Return the message; a tombstone has the JSON value null for a body."""
    # Anybody writes keys and headers; what is not text does not make a message unreadable.
    key: bytes | None = message.key()
    body: bytes | None = message.value()
    headers = {
        name: value.decode(errors="backslashreplace")
        for name, value in message.headers() or ()
        if value is not None
    }
    text = None if key is None else key.decode(errors="backslashreplace")
    return WireMessage(message.topic(), text, headers, b"null" if body is None else body)
