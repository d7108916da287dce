"""A batch on its way to Pulsar, and what the client's answers mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pulsar

try:
    from _pulsar import MessageBuilder as _MessageBuilder
except ImportError:  # it is not public, and may move
    _MessageBuilder = None

from semel.errors import PublishError, PublishErrorKind
from semel.transports.base import Outcomes
from semel.wire import WireMessage

Item = tuple[int, WireMessage]

# docs/transports/pulsar.md shows this table, and a test compares them.
ERRORS: dict[str, PublishErrorKind] = {
    # The message itself is refused.
    "MessageTooBig": "permanent",
    "InvalidMessage": "permanent",
    "InvalidTopicName": "permanent",
    # It was refused for a reason that passes.
    "ProducerQueueIsFull": "transient",
    "MemoryBufferIsFull": "transient",
    "ChecksumError": "transient",
    # The cluster, the credentials or the topic are in trouble; nothing was written.
    "ConnectError": "destination",
    "NotConnected": "destination",
    "LookupError": "destination",
    "TooManyLookupRequestException": "destination",
    "ServiceUnitNotReady": "destination",
    "BrokerMetadataError": "destination",
    "AuthenticationError": "destination",
    "AuthorizationError": "destination",
    "ErrorGettingAuthenticationData": "destination",
    "TopicNotFound": "destination",
    "TopicTerminated": "destination",
    "NotAllowedError": "destination",
    "IncompatibleSchema": "destination",
    "ProducerBlockedQuotaExceededError": "destination",
    "ProducerBlockedQuotaExceededException": "destination",
    "ProducerBusy": "destination",
    "ProducerFenced": "destination",
    "ProducerNotInitialized": "destination",
    "CryptoError": "destination",
    "InvalidUrl": "destination",
    "InvalidConfiguration": "destination",
    "OperationNotSupported": "destination",
    "UnsupportedVersionError": "destination",
    # It may have been written.
    "Timeout": "unknown",
    "BrokerPersistenceError": "unknown",
    "ReadError": "unknown",
    "AlreadyClosed": "unknown",
    "Interrupted": "unknown",
    "UnknownError": "unknown",
}
OTHER_ERRORS: PublishErrorKind = "unknown"
# After these a producer is of no use any more.
SPENT = frozenset(
    ("AlreadyClosed", "TopicTerminated", "ProducerFenced", "ProducerNotInitialized", "CryptoError")
)

_OK = "Ok"
_SKIPPED = "Skipped"
_STRIDE = 200  # messages after which other tasks get their turn

_logger = logging.getLogger("semel.transports.pulsar")


def kind_of(name: str) -> PublishErrorKind:
    """Return the class of the client's result *name*; what the table lacks may be written."""
    return ERRORS.get(name, OTHER_ERRORS)


class Sender:
    """A producer of the client, with the shortest way into it."""

    __slots__ = ("_raw", "producer")

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        # Setting properties one by one, as the public method does, takes half of its time.
        self._raw = getattr(producer, "_producer", None) if _MessageBuilder is not None else None

    def send(self, wire: WireMessage, callback: Callable[[Any, object], None]) -> None:
        """Send without waiting; *callback* is called in any thread, this one included."""
        if self._raw is None:
            self.producer.send_async(
                wire.body, callback, properties=wire.headers, partition_key=wire.key
            )
            return
        builder = _MessageBuilder()
        builder.content(wire.body)
        builder.properties(wire.headers)
        if wire.key is not None:
            builder.partition_key(wire.key)
        self._raw.send_async(builder.build(), callback)


class Flight:
    """Messages that go together, and one future for them all.

    The client answers in its own threads, and on the spot for a message that is too large.
    """

    def __init__(self, items: Sequence[Item], outcomes: Outcomes) -> None:
        self.items = items
        self.spent: set[str] = set()  # topics whose producer is of no use any more
        self._outcomes = outcomes
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        # Appending is atomic: whoever brings the last answer sees that it is complete.
        self._answers: list[tuple[int, str]] = []
        self._expected = len(items)
        self._read = 0

    async def send(self, producers: Mapping[str, Sender]) -> None:
        """Hand everything to the client, except what an earlier failure holds back."""
        outcomes, count = self._outcomes, 0
        try:
            for index, wire in self.items:
                if count % _STRIDE == _STRIDE - 1:
                    await asyncio.sleep(0)
                if self._read < len(self._answers):
                    self._harvest()
                count += 1
                if not outcomes.admits(index):
                    self._answer(count - 1, _SKIPPED)
                    continue
                try:
                    producers[wire.topic].send(wire, partial(self._called, count - 1))
                except pulsar.PulsarException as error:
                    self._answer(count - 1, type(error).__name__)
        finally:
            # If our caller was cancelled: closing waits for what was sent, not for the rest.
            for position in range(count, self._expected):
                self._answer(position, _SKIPPED)

    async def land(self, seconds: float) -> None:
        """Wait for the answers, and report them; what has none after *seconds* is unknown."""
        await asyncio.wait((self.done,), timeout=seconds)
        answered = dict(self._answers)
        self._harvest()
        outcomes = self._outcomes
        for position, (index, wire) in enumerate(self.items):
            name = answered.get(position)
            if name is None:
                self.spent.add(wire.topic)
                if outcomes.admits(index):
                    outcomes.fail(index, PublishError("no answer in time", kind="unknown"))
            elif name == _OK and not outcomes.admits(index):
                # Reported as failed: it will be sent again, behind the one that is missing.
                _logger.warning(
                    "topic %s: a message arrived although an earlier one of its key failed",
                    wire.topic,
                )

    def _harvest(self) -> None:
        """Report the failures that came since the last call."""
        while self._read < len(self._answers):
            position, name = self._answers[self._read]
            self._read += 1
            if name in (_OK, _SKIPPED):
                continue
            index, wire = self.items[position]
            if name in SPENT:
                self.spent.add(wire.topic)
            self._outcomes.fail(index, PublishError(f"Pulsar says {name}", kind=kind_of(name)))

    def _called(self, position: int, result: Any, _: object) -> None:
        # Most results are Ok, and looking for a name takes time.
        self._answer(position, result.name if result.value else _OK)

    def _answer(self, position: int, name: str) -> None:
        self._answers.append((position, name))
        if len(self._answers) == self._expected:
            try:
                self._loop.call_soon_threadsafe(self._finish)
            except RuntimeError:  # the event loop is closed: nobody waits any more
                return

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
