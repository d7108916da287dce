"""Deliveries of one RabbitMQ queue: in order per key, through reconnects."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiormq.abc import AbstractChannel, DeliveredMessage

from semel.errors import BusError, SemelError, describe
from semel.transports.rabbitmq_acks import Acks
from semel.transports.rabbitmq_errors import TROUBLE, calling
from semel.transports.rabbitmq_link import CALL_SECONDS
from semel.transports.rabbitmq_topology import Queue
from semel.wire import WireMessage

_logger = logging.getLogger("semel.transports.rabbitmq")
_KEYS = ("cloudEvents_partitionkey", "cloudEvents:partitionkey", "ce_partitionkey")
_MAX_WAIT_SECONDS = 3.0
_BREATH = 64  # deliveries after which other tasks get their turn


@dataclass(slots=True, eq=False)
class _Entry:
    tag: int
    wire: WireMessage
    attempt: int
    lane: _Lane
    epoch: int
    is_open: bool = False  # handed out, neither acked nor nacked


@dataclass(slots=True, eq=False)
class _Lane:
    """The unacked messages of one key; a message without key has its own."""

    key: str | None
    waiting: list[tuple[int, _Entry]] = field(default_factory=list)  # a heap by delivery tag
    size: int = 0
    delayed: int = 0  # nacked with a delay that has not passed


class RabbitMQSubscription:
    """One consumer of one queue. A nacked message waits here, not in the queue, to keep its place.

    When the channel or the connection is lost, what was delivered is the broker's again, and the
    subscription consumes anew as soon as it can.
    """

    def __init__(self, queue: Queue, prefetch: int) -> None:
        self.name = queue.name
        self._queue = queue
        self._prefetch = prefetch
        self._channel: AbstractChannel | None = None
        self._acks: Acks | None = None
        self._ended = asyncio.Event()  # this consumer, not the subscription
        self._wake = asyncio.Event()
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._count = 0
        self._epoch = 0
        self._forget()

    def _forget(self) -> None:
        self._epoch += 1
        self._held = 0
        self._lanes: dict[str, _Lane] = {}
        self._ready: list[tuple[int, int, _Lane]] = []
        self._announced = 0

    # Life

    async def start(self) -> None:
        """Consume; later interruptions are mended in the background."""
        await calling(self._attach())
        self._keeper = asyncio.create_task(self._keep(), name=f"semel-rabbitmq-{self.name}")

    def is_connected(self) -> bool:
        """Tell whether the broker is connected and may deliver."""
        channel = self._channel
        return not self._closed and channel is not None and not channel.is_closed

    async def lag(self) -> int | None:
        """Return how many messages are ready in the queue, and are here without an ack."""
        return await self._queue.depth() + self._held

    async def close(self) -> None:
        """Stop; deliveries that were not acked go back to the broker. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._detach()

    async def _attach(self) -> None:
        self._ended = ended = asyncio.Event()
        self._channel = channel = await self._queue.open()
        self._acks = Acks(channel, prefetch=self._prefetch)
        try:
            await channel.basic_qos(prefetch_count=self._prefetch)
            channel.closing.add_done_callback(lambda _: ended.set())
            channel.on_consumer_cancel_callbacks.add(lambda _: ended.set())
            epoch = self._epoch

            async def receive(message: DeliveredMessage) -> None:
                self._receive(message, epoch)

            await channel.basic_consume(self.name, receive)
        except BaseException:
            await self._detach()
            raise

    async def _detach(self) -> None:
        channel, acks = self._channel, self._acks
        self._channel = self._acks = None
        self._forget()
        if channel is not None and acks is not None and not channel.is_closed:
            await acks.flush()
            with suppress(*TROUBLE):
                await calling(channel.close())

    async def _keep(self) -> None:
        """Consume again after the broker or the network ended it."""
        while True:
            await self._ended.wait()
            _logger.warning("queue %s: the broker ended the consumer", self.name)
            await self._detach()
            wait = 0.05
            while True:
                try:
                    # A broker that has just started may leave a question unanswered.
                    async with asyncio.timeout(CALL_SECONDS):
                        await calling(self._attach())
                except (SemelError, *TROUBLE) as error:
                    _logger.warning("queue %s: cannot consume: %s", self.name, describe(error))
                    await asyncio.sleep(wait)
                    wait = min(wait * 2, _MAX_WAIT_SECONDS)
                else:
                    _logger.info("queue %s: consuming again", self.name)
                    break

    # Deliveries

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RabbitMQDelivery:
        self._count += 1
        if self._count % _BREATH == 0:
            await asyncio.sleep(0)
        while not self._closed:
            entry = self._take()
            if entry is not None:
                return RabbitMQDelivery(self, entry)
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def _receive(self, message: DeliveredMessage, epoch: int) -> None:
        if epoch != self._epoch or self._closed:
            return
        wire, attempt = read(message, self._queue.topic)
        lane = None if wire.key is None else self._lanes.get(wire.key)
        if lane is None:
            lane = _Lane(wire.key)
            if wire.key is not None:
                self._lanes[wire.key] = lane
        lane.size += 1
        self._held += 1
        tag = message.delivery_tag or 0
        self._put(_Entry(tag, wire, attempt, lane, epoch))

    def _put(self, entry: _Entry) -> None:
        heapq.heappush(entry.lane.waiting, (entry.tag, entry))
        self._announce(entry.lane)

    def _announce(self, lane: _Lane) -> None:
        if lane.waiting and not lane.delayed:
            self._announced += 1
            heapq.heappush(self._ready, (lane.waiting[0][0], self._announced, lane))
            self._wake.set()

    def _take(self) -> _Entry | None:
        while self._ready:
            tag, _, lane = heapq.heappop(self._ready)
            if lane.delayed or not lane.waiting or lane.waiting[0][0] != tag:
                continue  # out of date
            entry = heapq.heappop(lane.waiting)[1]
            entry.is_open = True
            self._announce(lane)
            return entry
        return None

    def ack(self, entry: _Entry, attempt: int) -> None:
        """Tell the broker that *entry* is done."""
        acks = self._settle(entry, attempt)
        entry.lane.size -= 1
        self._held -= 1
        if not entry.lane.size and entry.lane.key is not None:
            del self._lanes[entry.lane.key]
        acks.add(entry.tag)

    def nack(self, entry: _Entry, attempt: int, delay: float) -> None:
        """Keep *entry* and deliver it again, before what follows of its key."""
        self._settle(entry, attempt)
        entry.attempt += 1
        if delay > 0:
            entry.lane.delayed += 1
            asyncio.get_running_loop().call_later(delay, self._due, entry.lane, self._epoch)
        self._put(entry)

    def _due(self, lane: _Lane, epoch: int) -> None:
        if epoch == self._epoch:
            lane.delayed -= 1
            self._announce(lane)

    def _settle(self, entry: _Entry, attempt: int) -> Acks:
        acks = self._acks
        if entry.epoch != self._epoch or acks is None or not self.is_connected():
            raise BusError("this delivery went back to the broker when its channel closed")
        if not entry.is_open or entry.attempt != attempt:
            raise BusError("this delivery was acked or nacked before")
        entry.is_open = False
        return acks


class RabbitMQDelivery:
    """A message that the broker handed over."""

    __slots__ = ("_attempt", "_entry", "_subscription")

    def __init__(self, subscription: RabbitMQSubscription, entry: _Entry) -> None:
        self._subscription = subscription
        self._entry = entry
        self._attempt = entry.attempt

    @property
    def wire(self) -> WireMessage:
        """The bytes and headers."""
        return self._entry.wire

    @property
    def attempt(self) -> int:
        """1 for a first delivery; the broker's count, and the nacks of this subscription."""
        return self._attempt

    async def ack(self) -> None:
        """Never deliver this again to this group."""
        self._subscription.ack(self._entry, self._attempt)

    async def nack(self, *, delay: float = 0.0) -> None:
        """Deliver this again after *delay* seconds."""
        self._subscription.nack(self._entry, self._attempt, delay)


def read(message: DeliveredMessage, topic: str) -> tuple[WireMessage, int]:
    """Return what a message says, and which attempt it is."""
    properties = message.header.properties
    raw: Mapping[str, Any] = properties.headers or {}
    headers = {name: text for name, value in raw.items() if (text := _text(value)) is not None}
    if properties.message_id:
        headers["message_id"] = str(properties.message_id)
    if properties.content_type:
        headers["content-type"] = str(properties.content_type)
    if properties.correlation_id:
        headers.setdefault("correlation_id", str(properties.correlation_id))
    if properties.message_type:
        headers.setdefault("event_type", str(properties.message_type))
    key = next((headers[name] for name in _KEYS if name in headers), None)
    count = raw.get("x-delivery-count")
    if isinstance(count, int):
        attempt = count + 1
    else:
        attempt = 2 if message.redelivered else 1
    return WireMessage(topic, key, headers, message.body), attempt


def _text(value: object) -> str | None:
    """Return a header as text; None for tables, lists and what only the broker understands."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes | bytearray):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return None
