"""A member of a group on Pulsar: a thread that receives, and deliveries in the event loop.

A nacked message stays here until it is due, and what follows of its key waits behind it. A
negative acknowledgement would let the followers overtake it: the broker has sent them already.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Self

import pulsar

from semel.errors import BusError
from semel.transports.delivery import EntryDelivery
from semel.wire import WireMessage

_POLL_MILLISECONDS = 200
_CLOSE_SECONDS = 15.0
_MAX_HELD = 1_000  # messages that wait for a nacked one of their key
_BREATH = 64  # deliveries after which other tasks get their turn
_SUSPECTS = 1_000  # as many of a member's first messages may have been delivered before

_logger = logging.getLogger("semel.transports.pulsar")

Place = tuple[int, int, int, int]


class _Entry:
    """A message that is not acked, with all the copies that the broker sent of it.

    Each copy counts in its own batch, and a batch is done when all its messages are acked.
    """

    __slots__ = ("attempt", "copies", "key", "number", "open", "place")

    def __init__(self, number: int, place: Place, message: Any, *, suspect: bool) -> None:
        self.number = number
        self.place = place
        self.copies = [message]
        self.key = _key_of(message)
        self.attempt: int = max(message.redelivery_count(), suspect)
        self.open = False


class _Lane:
    """The messages of one key that wait until a nacked one of them is due."""

    __slots__ = ("delayed", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Entry] = []
        self.delayed = 0


class PulsarSubscription:
    """One consumer of a Key_Shared subscription; at most *prefetch* deliveries are open.

    The broker does not count a message that comes again because its member died. So the first
    ones that are older than *since*, the time in seconds when this member came, count as
    redelivered: any of them may have killed the one before. *client* is closed at the end.
    """

    def __init__(
        self, consumer: Any, topic: str, prefetch: int, *, since: float, client: Any = None
    ) -> None:
        self.topic = topic
        self._prefetch = prefetch
        self._since = since * 1000
        self._suspects = _SUSPECTS
        self._consumer = consumer
        self._known: dict[Place, _Entry] = {}
        self._ready: deque[_Entry] = deque()
        # Nacked and due: they go before what is new.
        self._again: list[tuple[int, _Entry]] = []
        self._lanes: dict[str | int, _Lane] = {}
        self._held = 0
        self._open = 0
        self._numbers = count()
        self._wake = asyncio.Event()
        self._failure: BusError | None = None
        self._closed = False
        # Closing the consumer sends the acks that wait, and returns the rest to the broker.
        ends = [consumer.close] if client is None else [consumer.close, client.close]
        self._receiver = _Receiver(
            consumer,
            room=max(1, prefetch // 2),
            arrive=self._arrive,
            fail=self._fail,
            ends=ends,
            name=f"semel-pulsar-{topic}",
        )

    @staticmethod
    def queue_size(prefetch: int) -> int:
        """Return how many messages the client may hold besides those that wait here."""
        return max(1, prefetch - prefetch // 2)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryDelivery:
        if next(self._numbers) % _BREATH == 0:
            await asyncio.sleep(0)
        while not self._closed:
            if self._failure is not None:
                raise self._failure
            entry = self._next() if self._open < self._prefetch else None
            if entry is not None:
                entry.open = True
                entry.attempt += 1
                self._open += 1
                make_wire = partial(_to_wire, self.topic, entry)
                return EntryDelivery(self, entry, entry.attempt, make_wire)
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def is_connected(self) -> bool:
        """Tell whether the broker is connected and may deliver."""
        return not self._closed and self._failure is None and bool(self._consumer.is_connected())

    async def lag(self) -> int | None:
        """Return None: the client cannot ask, and the broker counts batches, not messages."""
        return None

    async def close(self) -> None:
        """Leave the group; deliveries that were not acked go back. Idempotent."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._receiver.stop()
            self._known.clear()
            self._ready.clear()
            self._again.clear()
            self._lanes.clear()
        done, _ = await asyncio.wait((self._receiver.ended,), timeout=_CLOSE_SECONDS)
        if not done:
            _logger.warning("topic %s: the consumer takes long to close", self.topic)

    def settle(self, entry: _Entry, attempt: int, *, again: bool, delay: float = 0.0) -> None:
        """Take the application's word about *entry*; `BusError` if it comes too late."""
        if not entry.open or entry.attempt != attempt:
            raise BusError("this delivery was acked or nacked before")
        if self._closed:
            if again:
                return
            raise BusError("this delivery went back to the broker when its subscription closed")
        entry.open = False
        self._open -= 1
        self._wake.set()
        if again:
            self._put_back(entry, delay)
            return
        self._known.pop(entry.place, None)
        try:
            for message in entry.copies:
                # Returns at once: the client sends acks in groups.
                self._consumer.acknowledge(message)
        except pulsar.PulsarException as error:
            name = type(error).__name__
            raise BusError(f"the ack failed, the message comes again: Pulsar says {name}") from None

    def _next(self) -> _Entry | None:
        while True:
            if self._again:
                entry = heapq.heappop(self._again)[1]
            elif self._ready:
                entry = self._ready.popleft()
                self._receiver.took(1)
            else:
                return None
            lane = self._lanes.get(_lane_of(entry)) if self._lanes else None
            if lane is None:
                return entry
            lane.waiting.append(entry)
            self._hold(1)

    def _put_back(self, entry: _Entry, delay: float) -> None:
        key = _lane_of(entry)
        if delay <= 0 and key not in self._lanes:
            heapq.heappush(self._again, (entry.number, entry))
            return
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting.append(entry)
        self._hold(1)
        if delay > 0:
            lane.delayed += 1
            asyncio.get_running_loop().call_later(delay, self._due, key, lane)

    def _due(self, key: str | int, lane: _Lane) -> None:
        lane.delayed -= 1
        if lane.delayed or self._lanes.get(key) is not lane:
            return
        del self._lanes[key]
        self._hold(-len(lane.waiting))
        for entry in lane.waiting:
            heapq.heappush(self._again, (entry.number, entry))
        self._wake.set()

    def _hold(self, count: int) -> None:
        self._held += count
        self._receiver.pause(self._held >= _MAX_HELD)

    def _arrive(self, messages: Sequence[Any]) -> None:
        dropped = 0
        for message in messages:
            place = _place_of(message)
            known = self._known.get(place)
            if self._closed:
                dropped += 1
            elif known is not None:
                # After a lost connection the broker sends again what we have.
                known.copies.append(message)
                dropped += 1
            else:
                suspect = self._suspects > 0 and message.publish_timestamp() < self._since
                self._suspects -= suspect
                number = next(self._numbers)
                entry = self._known[place] = _Entry(number, place, message, suspect=suspect)
                self._ready.append(entry)
        self._receiver.took(dropped)
        self._wake.set()

    def _fail(self, text: str) -> None:
        # Whoever iterates hears it and subscribes again.
        self._failure = BusError(text)
        self._wake.set()


class _Receiver:
    """The thread. *arrive* and *fail* are called in the event loop, at most *room* wait there."""

    def __init__(
        self,
        consumer: Any,
        *,
        room: int,
        arrive: Callable[[Sequence[Any]], None],
        fail: Callable[[str], None],
        ends: Sequence[Callable[[], None]],
        name: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._consumer = consumer
        self._ends = ends
        self._size = room
        self._arrive = arrive
        self._fail = fail
        self._given = 0  # messages that went to the event loop; by the thread
        self._taken = 0  # those of them that wait no more; by the event loop
        self._paused = False
        self._room = threading.Event()
        self._stopping = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def took(self, count: int) -> None:
        """Say that *count* messages wait no more; called in the event loop."""
        self._taken += count
        few = self._given - self._taken <= self._size // 2
        if few and not self._paused and not self._room.is_set():
            self._room.set()

    def pause(self, on: bool) -> None:
        """Receive nothing while *on*; called in the event loop."""
        self._paused = on
        if not on:
            self.took(0)

    def stop(self) -> None:
        """Close the consumer, and set `ended`."""
        self._stopping = True
        self._room.set()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wait_for_room()
                if not self._stopping and (messages := self._receive()):
                    self._given += len(messages)
                    self._call(self._arrive, messages)
        except Exception as error:  # noqa: BLE001  a dead thread would look like a quiet topic
            self._call(self._fail, f"the consumer ended: Pulsar says {type(error).__name__}")
        for end in self._ends:
            with suppress(pulsar.PulsarException):  # a lost connection has closed it already
                end()
        self._call(self.ended.set_result, None)

    def _wait_for_room(self) -> None:
        while not self._stopping and (self._paused or self._given - self._taken >= self._size):
            self._room.clear()
            if self._paused or self._given - self._taken >= self._size:
                self._room.wait(_POLL_MILLISECONDS / 1000)

    def _receive(self) -> list[Any]:
        messages: list[Any] = []
        with suppress(pulsar.Timeout):
            messages.append(self._consumer.receive(_POLL_MILLISECONDS))
            while self._given + len(messages) - self._taken < self._size:
                messages.append(self._consumer.receive(0))
        return messages

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the event loop is closed: nobody reads any more
            self._stopping = True


def _lane_of(entry: _Entry) -> str | int:
    return entry.number if entry.key is None else entry.key


def _to_wire(topic: str, entry: _Entry) -> WireMessage:
    """Return the message; a null value, as compacted topics have, is the JSON value null."""
    message = entry.copies[0]
    body = b"null" if message.has_null_value() else bytes(message.data())
    return WireMessage(topic, entry.key, _headers_of(message), body)


def _place_of(message: Any) -> Place:
    place = message.message_id()
    return place.ledger_id(), place.entry_id(), place.partition(), place.batch_index()


def _key_of(message: Any) -> str | None:
    # Anybody writes keys and properties; what is not text does not make a message unreadable.
    try:
        return message.ordering_key() or message.partition_key() or None
    except UnicodeDecodeError:
        return None


def _headers_of(message: Any) -> dict[str, str]:
    try:
        return dict(message.properties())
    except UnicodeDecodeError:
        return {}
