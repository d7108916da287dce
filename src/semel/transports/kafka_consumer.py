"""A Kafka consumer in a thread: it fetches, pauses, commits and answers rebalances.

The event loop owns everything about deliveries, see `kafka_subscription`. Whatever both need is
written by one of the two only.

Kafka does not count deliveries. So each commit has a mark in its metadata, the offset below which
messages may have been handed out, and the next member takes those for redelivered. It is stored
before they are: a message that kills the process at once is counted too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from semel.errors import describe
from semel.transports.kafka_producer import ClientLog, explain

_POLL_SECONDS = 0.1
_COMMIT_SECONDS = 0.25
_LEAVE_SECONDS = 10.0
_DRAIN_SECONDS = 3.0  # how long a revoked partition waits for its deliveries to be acked
_REST_SECONDS = 1.0  # between two lives of a consumer that broke
_MAX_WINDOW = 10_000  # messages of a partition, from the first that is not acked
_MAX_HELD = 1_000  # messages that wait for a nacked one of their key
_AHEAD = 1_000  # offsets that may be handed out before the mark is stored anew
_ASK_SECONDS = 10.0
_MARK = "semel:"

_logger = logging.getLogger("semel.transports.kafka")


class Partition:
    """One assignment of a partition to this member; the next one is another object."""

    __slots__ = (
        *("committed", "entries", "handed", "lost", "mark", "number", "open", "position"),
        *("revoked", "suspect"),
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: deque[Entry] = deque()  # as fetched, from the first that is not acked
        self.open = 0  # deliveries that the application holds
        self.position = -1  # everything before this offset is acked; -1: nothing was fetched
        self.committed = -1
        self.suspect = -1  # what is before this offset may have been handed out to others
        self.handed = -1  # nothing from this offset on was handed out here
        self.mark = -1  # the group knows that what is before this offset may be handed out
        self.revoked = False  # delivers no more
        self.lost = False  # an ack comes too late

    def settle(self, entry: Entry) -> None:
        """Note that *entry* is acked, and move the position up to the first that is not."""
        entry.settled, entry.message = True, None
        while self.entries and self.entries[0].settled:
            # Offsets have gaps, where transactions ended for example.
            self.position = self.entries.popleft().offset + 1


class Entry:
    """A message that was fetched and is not acked."""

    __slots__ = ("attempt", "message", "offset", "open", "partition", "settled")

    def __init__(self, partition: Partition, message: Any) -> None:
        self.partition = partition
        self.message = message
        self.offset: int = message.offset()
        self.attempt = 1 if self.offset < partition.suspect else 0
        self.open = False
        self.settled = False


class Fetcher:
    """The thread. *arrive* and *take_back* are called in the event loop.

    *arrive* gets what was fetched. *take_back* gets partitions that deliver no more, and an
    event to be set once the application holds nothing of them.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        prefetch: int,
        arrive: Callable[[list[Entry]], None],
        take_back: Callable[[list[Partition], threading.Event], None],
    ) -> None:
        self.held = 0  # messages that wait for a nacked one of their key; by the event loop
        self.partitions: dict[int, Partition] = {}
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._topic = topic
        self._prefetch = prefetch
        self._arrive = arrive
        self._take_back = take_back
        self._given = 0  # messages that went to the event loop
        self._taken = 0  # those of them that wait no more; by the event loop
        self._room = threading.Event()
        self._stopping = threading.Event()
        self._assigned = False
        self._down = False
        self._jammed = False
        self._paused: set[int] = set()
        self._fresh: set[int] = set()  # just assigned
        self._next_commit = 0.0
        self._told: set[str] = set()
        self._settings = {
            **settings,
            "error_cb": self._on_error,
            "on_commit": self._on_commit,
            "logger": ClientLog(),
        }
        self._consumer: Any = Consumer(self._settings)
        name = f"semel-kafka-{topic}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def connected(self) -> bool:
        """Whether the group has answered, and a broker is there."""
        return self._assigned and not self._down

    def took(self, count: int) -> None:
        """Say that *count* messages wait no more; called in the event loop."""
        self._taken += count
        if not self._room.is_set() and self._given - self._taken <= self._prefetch // 2:
            self._room.set()

    def stop(self) -> None:
        """Commit what is acked, leave the group, and set `ended`."""
        self._stopping.set()
        self._room.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._consumer is None:
                    self._consumer = Consumer(self._settings)
                self._live()
            except Exception as error:  # noqa: BLE001  a dead thread would look like a quiet topic
                _logger.warning("topic %s: the consumer starts anew: %s", self._topic, _text(error))
                self._stopping.wait(_REST_SECONDS)
            self._forget(self.partitions.values())
            self._consumer, self._assigned = None, False
        self._call(self._end)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _live(self) -> None:
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        try:
            while not self._stopping.is_set():
                if self._loop.is_closed():
                    self._stopping.set()
                self._balance()
                self._fetch()
                self._commit()
                if self._down:
                    self._probe()
            self._leave()
        finally:
            with suppress(KafkaException):
                self._commit(wait=True)
            self._consumer.close()

    def _leave(self) -> None:
        """Leave the group for sure: a ghost would let its members wait for `session.timeout.ms`.

        The client leaves none behind only if it is no longer joining, and it does not tell the
        group when it closes without partitions.
        """
        deadline = time.monotonic() + _LEAVE_SECONDS
        while not self._assigned and not self._told and time.monotonic() < deadline:
            self._drop(self._consumer.poll(_POLL_SECONDS))
        if self._settings.get("group.protocol") == "consumer" or (
            "group.instance.id" in self._settings
        ):
            return
        with suppress(KafkaException):
            self._commit(wait=True)
        self._consumer.unsubscribe()
        while self._consumer.memberid() and not self._down and time.monotonic() < deadline:
            self._drop(self._consumer.poll(_POLL_SECONDS / 10))

    def _drop(self, message: Any) -> None:
        if message is not None and message.error() is not None:
            self._on_error(message.error())

    def _is_full(self) -> bool:
        limit = max(1, self._prefetch // 2) if self._jammed else self._prefetch
        return self._given - self._taken >= limit or self.held >= _MAX_HELD

    def _balance(self) -> None:
        """Pause what must not be fetched, resume what may."""
        if self._is_full():
            # Short jams are waited out: what is paused has to be fetched anew afterwards.
            self._room.clear()
            if self._is_full():
                self._room.wait(_POLL_SECONDS)
        self._jammed = self._is_full()
        wanted = {
            number
            for number, partition in self.partitions.items()
            if self._jammed or len(partition.entries) >= _MAX_WINDOW
        }
        self._paused &= self.partitions.keys()
        # To the client a partition that was paused when it left is paused when it comes back.
        maybe_paused = self._paused | (self._fresh & self.partitions.keys())
        for action, numbers in (
            (self._consumer.pause, wanted - self._paused),
            (self._consumer.resume, maybe_paused - wanted),
        ):
            if numbers:
                action([TopicPartition(self._topic, number) for number in numbers])
        self._paused = wanted
        self._fresh.clear()

    def _fetch(self) -> None:
        fetched: list[Entry] = []
        seconds = 0.0 if self._jammed else _POLL_SECONDS
        # One by one: a rebalance inside a call that returns several would mix them up.
        while (message := self._consumer.poll(seconds)) is not None:
            seconds = 0.0
            error = message.error()
            if error is None:
                partition = self.partitions.get(message.partition())
                if partition is not None:
                    if message.offset() >= partition.mark and not self._announce(
                        partition, message.offset()
                    ):
                        break
                    fetched.append(Entry(partition, message))
            else:
                self._on_error(error)
                if error.fatal():
                    raise KafkaException(error)
            if self._given + len(fetched) - self._taken >= self._prefetch:
                break
        if fetched:
            self._down = False
            self._told.clear()
            self._given += len(fetched)
            self._call(self._arrive, fetched)

    def _announce(self, partition: Partition, offset: int) -> bool:
        """Store the mark before *offset* is handed out; False if that has to be tried again."""
        try:
            if partition.position < 0:
                asked = [TopicPartition(self._topic, partition.number)]
                (found,) = self._consumer.committed(asked, timeout=_ASK_SECONDS)
                partition.suspect = _mark_of(found)
                partition.position = offset  # nothing before it is left to be acked
            position, mark = partition.position, offset + _AHEAD
            stored = [self._place(partition, position, mark)]
            (answer,) = self._consumer.commit(offsets=stored, asynchronous=False)
            if answer.error is not None:
                raise KafkaException(answer.error)
        except KafkaException as error:
            self._on_error(error.args[0])
            with suppress(KafkaException):  # it may have been revoked
                self._consumer.seek(TopicPartition(self._topic, partition.number, offset))
            self._stopping.wait(_POLL_SECONDS)
            return False
        partition.committed, partition.mark = position, mark
        return True

    def _place(self, partition: Partition, position: int, mark: int) -> Any:
        return TopicPartition(self._topic, partition.number, position, f"{_MARK}{mark}")

    def _commit(self, *, wait: bool = False) -> None:
        """Commit what is acked; the last commit of a partition has the exact mark."""
        now = time.monotonic()
        if not wait and now < self._next_commit:
            return
        self._next_commit = now + _COMMIT_SECONDS
        offsets: list[Any] = []
        for partition in self.partitions.values():
            position, mark = partition.position, partition.mark
            if partition.lost or self._stopping.is_set():
                mark = min(mark, max(position, partition.handed, partition.suspect))
            if position > partition.committed or mark < partition.mark:
                partition.committed, partition.mark = position, mark
                offsets.append(self._place(partition, position, mark))
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=not wait)
            except KafkaException as error:
                self._on_commit(error.args[0], offsets)
                if wait:
                    raise

    def _on_commit(self, error: KafkaError | None, offsets: Iterable[Any]) -> None:
        for offset in offsets:
            partition = self.partitions.get(offset.partition)
            if partition is not None and (error is not None or offset.error is not None):
                partition.committed = -1  # and so it is tried again
        if error is None:
            self._down = False

    def _on_assign(self, _: object, assigned: Iterable[Any]) -> None:
        for partition in assigned:
            self.partitions[partition.partition] = Partition(partition.partition)
            self._paused.discard(partition.partition)
            self._fresh.add(partition.partition)
        self._assigned, self._down = True, False

    def _on_revoke(self, _: object, revoked: Iterable[Any]) -> None:
        leaving = self._ours(revoked)
        for partition in leaving:
            partition.revoked = True
        drained = threading.Event()
        if self._call(self._take_back, leaving, drained):
            deadline = time.monotonic() + _DRAIN_SECONDS
            while not self._stopping.is_set() and time.monotonic() < deadline:
                if drained.wait(_POLL_SECONDS):
                    break
        for partition in leaving:
            partition.lost = True
        # If this fails the group went on without us: what was acked here comes again there.
        with suppress(KafkaException):
            self._commit(wait=True)
        self._forget(leaving)

    def _on_lost(self, _: object, lost: Iterable[Any]) -> None:
        self._forget(self._ours(lost))
        self._assigned = False

    def _ours(self, partitions: Iterable[Any]) -> list[Partition]:
        found = (self.partitions.get(partition.partition) for partition in partitions)
        return [partition for partition in found if partition is not None]

    def _forget(self, partitions: Iterable[Partition]) -> None:
        gone = list(partitions)
        for partition in gone:
            partition.revoked = partition.lost = True
            del self.partitions[partition.number]
        self._call(self._take_back, gone, threading.Event())

    def _on_error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._down = True
        if error.name() not in self._told:  # once, until something arrives
            self._told.add(error.name())
            _logger.warning("topic %s: %s", self._topic, explain(error))

    def _probe(self) -> None:
        with suppress(KafkaException):
            self._consumer.list_topics(self._topic, timeout=0.5)
            self._down = False

    def _call(self, function: Callable[..., object], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the event loop is closed: nobody reads any more
            self._stopping.set()
            return False
        return True


def _mark_of(committed: Any) -> int:
    """Return the mark; -1 for a group that is new or that somebody else has committed for."""
    mark: str = committed.metadata or ""
    number = mark.removeprefix(_MARK)
    return int(number) if mark.startswith(_MARK) and number.isdecimal() else -1


def _text(error: Exception) -> str:
    known = isinstance(error, KafkaException) and error.args
    return explain(error.args[0]) if known else describe(error)
