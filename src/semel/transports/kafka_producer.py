"""A producer of librdkafka in the event loop, and what its errors mean."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from semel.errors import PublishError, PublishErrorKind, redact
from semel.transports.base import Outcomes
from semel.wire import WireMessage

Item = tuple[int, WireMessage]

# docs/transports/kafka.md shows this table, and a test compares them.
ERRORS: dict[str, PublishErrorKind] = {
    # The message itself is refused.
    "MSG_SIZE_TOO_LARGE": "permanent",
    "INVALID_MSG_SIZE": "permanent",
    "RECORD_LIST_TOO_LARGE": "permanent",
    "INVALID_RECORD": "permanent",
    "INVALID_TIMESTAMP": "permanent",
    "TOPIC_EXCEPTION": "permanent",
    # It was refused for a reason that passes.
    "INVALID_MSG": "transient",
    "_INVALID_DIFFERENT_RECORD": "transient",
    "THROTTLING_QUOTA_EXCEEDED": "transient",
    # The cluster, the credentials or the topic are in trouble; nothing was written.
    "UNKNOWN_TOPIC_OR_PART": "destination",
    "UNKNOWN_TOPIC_ID": "destination",
    "_UNKNOWN_TOPIC": "destination",
    "_UNKNOWN_PARTITION": "destination",
    "TOPIC_AUTHORIZATION_FAILED": "destination",
    "CLUSTER_AUTHORIZATION_FAILED": "destination",
    "SASL_AUTHENTICATION_FAILED": "destination",
    "UNSUPPORTED_SASL_MECHANISM": "destination",
    "_AUTHENTICATION": "destination",
    "_SSL": "destination",
    "_RESOLVE": "destination",
    "_TRANSPORT": "destination",
    "_ALL_BROKERS_DOWN": "destination",
    "BROKER_NOT_AVAILABLE": "destination",
    "LEADER_NOT_AVAILABLE": "destination",
    "NOT_LEADER_FOR_PARTITION": "destination",
    "NOT_ENOUGH_REPLICAS": "destination",
    "KAFKA_STORAGE_ERROR": "destination",
    "POLICY_VIOLATION": "destination",
    "INVALID_REQUIRED_ACKS": "destination",
    "UNSUPPORTED_VERSION": "destination",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "destination",
    "UNSUPPORTED_COMPRESSION_TYPE": "destination",
    "_PURGE_QUEUE": "destination",
    "_FATAL": "destination",
    # It may have been written.
    "_MSG_TIMED_OUT": "unknown",
    "_TIMED_OUT": "unknown",
    "_PURGE_INFLIGHT": "unknown",
    "REQUEST_TIMED_OUT": "unknown",
    "NETWORK_EXCEPTION": "unknown",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "unknown",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "unknown",
    "UNKNOWN_PRODUCER_ID": "unknown",
    "INVALID_PRODUCER_EPOCH": "unknown",
}
OTHER_ERRORS: PublishErrorKind = "unknown"

_UNSENT = frozenset(("_PURGE_QUEUE", "_FATAL"))
_PENDING: Any = object()
_SKIPPED: Any = object()
_STRIDE = 500  # messages after which other tasks get their turn
_POLL_SECONDS = 0.001
_PURGE_SECONDS = 5.0
_QUIET_SECONDS = 10.0

_logger = logging.getLogger("semel.transports.kafka")


def _refuse(*_: object, **__: object) -> None:
    raise KafkaException(KafkaError(KafkaError._PURGE_QUEUE))  # noqa: SLF001


def kind_of(error: KafkaError) -> PublishErrorKind:
    """Return the class of *error*; what the table does not name may have been written."""
    return ERRORS.get(error.name(), OTHER_ERRORS)


def explain(error: KafkaError) -> str:
    """Return the name and the text of *error* without credentials."""
    return f"{error.name()}: {redact(error.str())}"


class ClientLog:
    """Where librdkafka logs; it names hosts and topics, never settings."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """Pass a line on, one of each sort in a while: a lost broker is told twice a second."""
        line = text % arguments if arguments else text
        sort, now = line.partition(" ")[0], time.monotonic()
        if "enable.gapless.guarantee" in line or now < self._last.get(sort, 0.0):
            return
        self._last[sort] = now + _QUIET_SECONDS
        # No alarm: a client that gives up is replaced, and takes over what was not sent.
        _logger.log(min(level, logging.WARNING), "%s", redact(line))


class Flight:
    """Messages that were handed to the client together, and one future for them all."""

    __slots__ = ("_answered", "_expected", "done", "failed", "items", "reason", "states")

    def __init__(self, items: Sequence[Item], done: asyncio.Future[None]) -> None:
        self.items = items
        self.done = done
        self.states: list[Any] = [_PENDING] * len(items)  # None: confirmed
        self.failed = False
        self.reason = ""  # why it was given up, if it was
        self._answered = 0
        self._expected = -1

    def report(self, position: int, state: Any, _: object = None) -> None:
        """Take the answer for one message; None means confirmed."""
        if state is not None:
            self.failed = True
        self.states[position] = state
        self._answered += 1
        if self._answered == self._expected:
            self.done.set_result(None)

    def seal(self, count: int) -> None:
        """Say that *count* reports are all that will come."""
        self._expected = count
        if self._answered == count:
            self.done.set_result(None)

    def settle(
        self, outcomes: Outcomes, *, alone: bool, final: bool
    ) -> tuple[list[Item], set[int]]:
        """Report failures; return what is to be sent again, and who of them must go alone.

        The broker refuses messages of one partition that travel together as a whole, so one
        that was not *alone* may be innocent. *final* is for those that have no time left.
        """
        again: list[Item] = []
        suspects: set[int] = set()
        if not self.failed and not self.reason:
            return again, suspects
        failed: set[tuple[str, str]] = set()
        for item, state in zip(self.items, self.states, strict=True):
            index, wire = item
            if state is None:
                if failed and wire.key is not None and (wire.topic, wire.key) in failed:
                    _logger.warning(
                        "topic %s: a message arrived although an earlier one of its key failed",
                        wire.topic,
                    )
                continue
            if state is _SKIPPED:
                continue
            if state is _PENDING:
                error = PublishError(f"no answer; {self.reason}", kind="unknown")
            else:
                name, kind = state.name(), kind_of(state)
                guilty = kind == "permanent" or name == "_INVALID_DIFFERENT_RECORD"
                if not final and not alone and guilty:
                    suspects.add(index)
                if not final and (index in suspects or (name in _UNSENT and not self.reason)):
                    again.append(item)
                    continue
                if guilty and not alone:
                    kind = "transient"  # there was no time to try it alone
                text = f"{explain(state)}; {self.reason}" if self.reason else explain(state)
                error = PublishError(text, kind=kind)
            if outcomes.admits(index):  # else it has the error of its key
                outcomes.fail(index, error)
            if wire.key is not None:
                failed.add((wire.topic, wire.key))
        return again, suspects


class Client:
    """One producer: served from the event loop while something is in flight.

    `alive` is false once it cannot be used any more; the bus makes another one then.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.alive = True
        self.trouble: KafkaError | None = None
        self._flights: set[Flight] = set()
        self._poller: asyncio.Task[None] | None = None
        self._producer: Any = Producer(
            {**settings, "error_cb": self._on_error, "logger": ClientLog()}
        )

    async def send(self, items: Sequence[Item], outcomes: Outcomes, deadline: float) -> Flight:
        """Send what *outcomes* admits; return once all is answered or given up.

        At *deadline* the client is given up, with everything that is still in it: otherwise a
        message could arrive after an earlier one of its key was reported as failed.
        """
        loop = asyncio.get_running_loop()
        flight = Flight(items, loop.create_future())
        self._flights.add(flight)
        # Also if our caller is cancelled: what is in flight wants to be served, and closed with.
        flight.done.add_done_callback(lambda _: self._flights.discard(flight))
        if self._poller is None:
            self._poller = loop.create_task(self._poll())
        await self._produce(flight, outcomes, deadline)
        began = loop.time()
        await asyncio.wait((flight.done,), timeout=max(0.0, deadline - began))
        if not flight.done.done():
            trouble = f", last trouble: {explain(self.trouble)}" if self.trouble else ""
            flight.reason = f"not confirmed in time{trouble}"
            self.give_up()
            await asyncio.wait((flight.done,), timeout=_PURGE_SECONDS)
        return flight

    async def _produce(self, flight: Flight, outcomes: Outcomes, deadline: float) -> None:
        clock = asyncio.get_running_loop().time
        items, count = flight.items, 0
        try:
            while count < len(items):
                before = count
                count = self._put(flight, count, outcomes)
                if count < len(items):
                    self.serve()
                    # Without progress the client's queue is full.
                    await asyncio.sleep(0 if count > before else _POLL_SECONDS)
                    if clock() >= deadline:
                        self.alive = False
        finally:
            flight.seal(count)

    def _put(self, flight: Flight, start: int, outcomes: Outcomes) -> int:
        """Hand over messages from *start* on; return where to go on."""
        stop = min(start + _STRIDE, len(flight.items))
        produce = self._producer.produce if self.alive else _refuse
        report, failed = flight.report, outcomes.failed
        for position, (index, wire) in enumerate(flight.items[start:stop], start):
            if failed and not outcomes.admits(index):
                report(position, _SKIPPED)
                continue
            topic, key, headers, body = wire
            answer = MethodType(report, position)  # one object, of which partial makes three
            try:
                produce(topic, body, key, headers=headers, on_delivery=answer)
            except BufferError:
                return position
            except KafkaException as error:
                trouble: KafkaError = error.args[0]
                if trouble.name() in _UNSENT:
                    self.alive = False
                    report(position, trouble)
                else:
                    # Refused on the spot, and for this message alone.
                    kind = kind_of(trouble)
                    outcomes.fail(index, PublishError(explain(trouble), kind=kind))
                    report(position, _SKIPPED)
        return stop

    async def _poll(self) -> None:
        try:
            while self._flights:
                self.serve()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._poller = None

    def serve(self) -> None:
        """Run the callbacks that are due."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            # A fatal error is raised here instead of being given to the callback.
            self._on_error(error.args[0])

    def _on_error(self, error: KafkaError) -> None:
        self.trouble = error
        if error.fatal():
            self.alive = False

    def metadata(self, timeout: float) -> None:
        """Ask the cluster about itself; blocks, raises `KafkaException`."""
        # One topic rather than all: a cluster may have thousands.
        self._producer.list_topics(topic="__consumer_offsets", timeout=timeout)

    def give_up(self) -> None:
        """Fail what is queued or in flight; the client is dead then."""
        self.alive = False
        self._producer.purge(blocking=False)

    async def close(self, seconds: float) -> None:
        """Wait for what is in flight, at most *seconds*, and end the client."""
        self.alive = False
        waiting = [flight.done for flight in self._flights]
        if waiting:
            _, left = await asyncio.wait(waiting, timeout=seconds)
            if left:
                self.give_up()
                await asyncio.wait(left, timeout=_PURGE_SECONDS)
        if self._poller is not None:
            self._poller.cancel()
        holder, self._producer = [self._producer], None
        # Freeing the last reference waits for librdkafka's threads.
        await asyncio.get_running_loop().run_in_executor(None, holder.clear)
