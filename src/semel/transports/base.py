"""What every transport needs: a lifecycle, encoding, and one outcome per message."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self
from weakref import WeakSet

from semel.envelope import MessageEnvelope, check_name
from semel.errors import (
    BusError,
    ConfigurationError,
    InvalidMessageError,
    PublishError,
    SemelError,
    describe,
)
from semel.protocols import Subscription
from semel.wire import MODES, Mode, WireMessage, encode

_MAX_CHECKED = 10_000


class Outcomes:
    """The results of one `publish_many`: one per message, and an error for the rest of its key."""

    __slots__ = ("failed", "messages", "results")

    def __init__(self, messages: Sequence[MessageEnvelope]) -> None:
        self.messages = messages
        self.results: list[PublishError | None] = [None] * len(messages)
        self.failed: dict[tuple[str, str], tuple[int, PublishError]] = {}

    def fail(self, index: int, error: PublishError) -> None:
        """Give message *index* its error, and hold back what follows of its key."""
        self.results[index] = error
        message = self.messages[index]
        key = message.order_key
        if key is not None:
            lane = (message.tenant_id, key)
            if lane not in self.failed or index < self.failed[lane][0]:
                self.failed[lane] = (index, error)

    def admits(self, index: int) -> bool:
        """Tell whether message *index* may be sent; if not, it has the error of its key."""
        if not self.failed:
            return True
        message = self.messages[index]
        key = message.order_key
        failed = self.failed.get((message.tenant_id, key)) if key is not None else None
        # What stands before the failure is not concerned: it may be sent later than it failed.
        if failed is None or index < failed[0]:
            return True
        self.results[index] = failed[1]
        return False


class BaseMessageBus(ABC):
    """A `MessageBus` that starts on first use, in one event loop, until it is closed.

    A transport implements `_open`, `_close`, `_send`, `_subscribe` and `ping`.
    `start()` after `close()` opens it again, in any event loop.
    """

    #: The broker's name in metrics and spans.
    system: ClassVar[str]
    prefix: ClassVar[str] = "ce_"

    def __init__(
        self,
        *,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        self.source = source
        self._mode: Mode = mode
        self._modes = dict(modes or {})
        if not {mode, *self._modes.values()} <= set(MODES):
            raise ConfigurationError(f"a mode is one of {', '.join(MODES)}")
        self._checked: set[str] = set()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock
        self._started = False
        self._closed = False

    @property
    def source(self) -> str:
        """Who sends: the CloudEvents source of messages that do not bring their own."""
        return self._source

    @source.setter
    def source(self, name: str) -> None:
        try:
            self._source = check_name("source", name)
        except InvalidMessageError as error:
            raise ConfigurationError(f"the bus cannot use this name: {error}") from None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Idempotent."""
        self._bind()
        async with self._lock:
            if not self._started:
                await self._open()
                self._started, self._closed = True, False

    async def close(self) -> None:
        """Flush and disconnect, closing its subscriptions. Idempotent."""
        self._bind()
        async with self._lock:
            self._closed = True
            if not self._started:
                return
            try:
                for subscription in list(self._subscriptions):
                    with suppress(BusError):  # a lost connection has closed it already
                        await subscription.close()
                await self._close()
            finally:
                self._started = False

    async def publish(self, message: MessageEnvelope) -> None:
        """Return once the broker has durably accepted *message*; else raise `PublishError`."""
        try:
            error = (await self.publish_many([message]))[0]
        except (PublishError, ConfigurationError):
            raise
        except Exception as trouble:
            raise PublishError(describe(trouble), kind="destination") from trouble
        if error is not None:
            raise error

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        """Publish; the result at index i belongs to message i, None means confirmed."""
        await self._ready()
        outcomes = Outcomes(messages)
        batch: list[tuple[int, WireMessage]] = []
        encode, failed = self.encode, outcomes.failed
        for index, message in enumerate(messages):
            try:
                if not failed or outcomes.admits(index):
                    batch.append((index, encode(message)))
            except (SemelError, ValueError, TypeError) as error:
                # Python's own errors may quote the value.
                text = describe(error) if isinstance(error, SemelError) else type(error).__name__
                outcomes.fail(index, PublishError(f"cannot encode: {text}", kind="permanent"))
        if batch:
            await self._send(batch, outcomes)
        return outcomes.results

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Subscription:
        """Members of one group share the topic's messages; every group gets them all."""
        await self._ready()
        self.check_topic(topic)
        check_name("group", group)
        if prefetch < 1:
            raise ConfigurationError("prefetch must be at least 1")
        subscription = await self._subscribe(topic, group, prefetch)
        self._subscriptions.add(subscription)
        return subscription

    def encode(self, message: MessageEnvelope) -> WireMessage:
        """Return *message* as this bus sends it."""
        topic = message.topic
        if topic not in self._checked:
            self.check_topic(topic)
            if len(self._checked) < _MAX_CHECKED:
                self._checked.add(topic)
        mode = self._modes.get(topic, self._mode)
        return encode(message, source=self._source, prefix=self.prefix, mode=mode)

    def check_topic(self, topic: str) -> None:
        """Raise `InvalidMessageError` for a name that the broker would refuse or misread."""
        check_name("topic", topic)

    @abstractmethod
    async def ping(self) -> None:
        """Raise `BusError` if the broker does not answer."""

    @abstractmethod
    async def _open(self) -> None:
        """Connect; an exception leaves nothing open."""

    @abstractmethod
    async def _close(self) -> None:
        """Flush and disconnect; the subscriptions are closed already."""

    @abstractmethod
    async def _send(self, batch: Sequence[tuple[int, WireMessage]], outcomes: Outcomes) -> None:
        """Send in order what `outcomes.admits`; report failures to `outcomes.fail`."""

    @abstractmethod
    async def _subscribe(self, topic: str, group: str, prefetch: int) -> Subscription:
        """Join *group* on *topic*."""

    async def _ready(self) -> None:
        if self._closed:
            raise BusError("the bus is closed: call start() to use it again")
        if self._started:
            self._bind()
        else:
            await self.start()

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._started:
            raise ConfigurationError(
                "the bus was started in another event loop: make one bus per event loop, "
                "or close() it there before using it here"
            )
        self._loop, self._lock = loop, asyncio.Lock()
