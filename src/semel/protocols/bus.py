"""A broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from semel.envelope import MessageEnvelope
    from semel.errors import PublishError
    from semel.wire import WireMessage


@runtime_checkable
class Delivery(Protocol):
    """A message that the broker handed over; acked or nacked exactly once."""

    @property
    def wire(self) -> WireMessage:
        """The bytes and headers. Decoding is the consumer's task and may fail there."""

    @property
    def attempt(self) -> int:
        """1 for a first delivery, more for a redelivery as far as the broker tells."""

    async def ack(self) -> None:
        """Never deliver this again to this group."""

    async def nack(self, *, delay: float = 0.0) -> None:
        """Deliver this again, not before *delay* seconds where the broker can wait."""


class Subscription(Protocol):
    """Deliveries of one topic for one group."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliver messages of one key in order; ends after `close()`."""

    def is_connected(self) -> bool:
        """Tell whether the broker is connected and may deliver."""

    async def lag(self) -> int | None:
        """Return how many messages wait for this group; None where the broker cannot tell."""

    async def close(self) -> None:
        """Stop; deliveries that were not acked go back to the broker. Idempotent."""


class MessageBus(Protocol):
    """A broker."""

    async def start(self) -> None:
        """Connect. Idempotent."""

    async def close(self) -> None:
        """Flush and disconnect, closing its subscriptions. Idempotent."""

    async def ping(self) -> None:
        """Raise `BusError` if the broker does not answer."""

    async def publish(self, message: MessageEnvelope) -> None:
        """Return once the broker has durably accepted *message*; else raise `PublishError`."""

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        """Publish; the result at index i belongs to message i, None means confirmed.

        Order is kept among messages with the same order key. After a failure no later message
        of that key is sent, and it carries the same error.
        An exception that escapes means trouble with the destination, outcomes unknown.
        """

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Subscription:
        """Members of one group share the topic's messages; every group gets them all."""


class LogEntry(NamedTuple):
    """A message at its place in a log."""

    log: int
    position: int
    wire: WireMessage


@runtime_checkable
class MessageLog(Protocol):
    """A bus that keeps its messages, so that anybody can read them again without a group.

    A topic has one or more logs; a log's number is never used for another one.
    """

    async def bounds(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Return each log's first position that is kept, and the one behind its last.

        Everything below that end can be read, now and in this order.
        """

    async def read(
        self, topic: str, positions: Mapping[int, int], *, limit: int
    ) -> Sequence[LogEntry]:
        """Return messages of these logs from these positions on, at most *limit* of each log.

        Those of one log come in order and without gaps, those of one key are in one log.
        """

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* when messages may have come, until the function returned is called.

        A hint: look now and then without it, too.
        """
