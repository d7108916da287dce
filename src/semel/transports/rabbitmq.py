"""RabbitMQ: a topic is an exchange, a group is a queue."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Literal

from semel.envelope import MessageEnvelope
from semel.errors import (
    BusError,
    ConfigurationError,
    InvalidMessageError,
    PublishError,
    missing_extra,
)
from semel.transports.base import BaseMessageBus, Outcomes
from semel.wire import Mode, WireMessage

try:
    from aio_pika.abc import AbstractConnection as PikaConnection
    from aiormq.abc import AbstractConnection

    from semel.transports.amqp import BatchChannel, open_channel
    from semel.transports.amqp_frames import MAX_SHORT, Outgoing
    from semel.transports.amqp_single import SingleChannel, is_blocked
    from semel.transports.rabbitmq_errors import (
        ERRORS,
        TROUBLE,
        bus_error,
        calling,
        exchange_trouble,
        failure,
    )
    from semel.transports.rabbitmq_link import CALL_SECONDS, Link, passing_channel
    from semel.transports.rabbitmq_subscription import RabbitMQSubscription
    from semel.transports.rabbitmq_topology import CHARACTERS, Queue, Topology, is_name, queue_name
except ImportError as missing:
    raise ImportError(missing_extra("RabbitMQMessageBus", "rabbitmq")) from missing

_MAX_CHANNELS = 100
_MAX_PROVEN = 10_000
_KEY = "cloudEvents_partitionkey"


class RabbitMQMessageBus(BaseMessageBus):
    """RabbitMQ with confirmed, mandatory, persistent messages and quorum queues.

    *broker* is a URL, or an aio-pika connection that stays the caller's. A topic is the exchange of
    that name, or *exchange* for all topics. The routing key is the message's own, else its type
    where each topic has its topic exchange, else the topic. A group is the queue `<topic>.<group>`,
    or what *queue* returns for topic and group; it exists once somebody has subscribed.

    >>> bus = RabbitMQMessageBus("amqp://guest:guest@localhost/", delivery_limit=50)
    """

    system = "rabbitmq"
    prefix = "cloudEvents_"

    def __init__(
        self,
        broker: str | PikaConnection,
        *,
        exchange: str | None = None,
        exchange_type: str = "topic",
        queue: Callable[[str, str], str] = queue_name,
        queue_type: Literal["quorum", "classic"] = "quorum",
        single_active_consumer: bool = True,
        bindings: Mapping[str, Sequence[str]] | None = None,
        declare: bool = True,
        dead_letter_exchange: str | None = "semel.dead",
        delivery_limit: int | None = 100,
        unroutable: Literal["destination", "transient", "permanent", "accept"] = "destination",
        strict_order: bool = False,
        max_message_bytes: int = 128 * 1024 * 1024,
        window: int = 4000,
        window_bytes: int = 16 * 1024 * 1024,
        confirm_seconds: float = 30.0,
        connect_seconds: float = 10.0,
        heartbeat_seconds: int = 15,
        ssl_context: ssl.SSLContext | None = None,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if queue_type not in ("quorum", "classic"):
            raise ConfigurationError("queue_type is 'quorum' or 'classic'")
        if unroutable not in ("destination", "transient", "permanent", "accept"):
            raise ConfigurationError(
                "unroutable is 'destination', 'transient', 'permanent' or 'accept'"
            )
        if min(window, window_bytes, max_message_bytes) < 1:
            raise ConfigurationError("window, window_bytes and max_message_bytes are at least 1")
        if not all(is_name(name or "") for name in (exchange, dead_letter_exchange)):
            raise ConfigurationError(f"the name of an exchange has {CHARACTERS}")
        self._broker = broker
        self._topology = Topology(
            exchange=exchange,
            exchange_type=exchange_type,
            queue=queue,
            queue_type=queue_type,
            single_active_consumer=single_active_consumer,
            bindings=dict(bindings or {}),
            declare=declare,
            dead_letter_exchange=dead_letter_exchange,
            delivery_limit=delivery_limit,
        )
        self._strict_order = strict_order
        self._max_message_bytes = max_message_bytes
        self._publishing: dict[str, Any] = {
            "window": window,
            "window_bytes": window_bytes,
            "confirm_seconds": confirm_seconds,
            "unroutable": None if unroutable == "accept" else unroutable,
        }
        self._connecting: dict[str, Any] = {
            "heartbeat_seconds": heartbeat_seconds,
            "connect_seconds": connect_seconds,
            "ssl_context": ssl_context,
        }
        self._publisher: Link
        self._consumer: Link
        self._opening: asyncio.Lock
        self._channels: dict[str, BatchChannel | SingleChannel] = {}
        self._proven: set[tuple[str, str]] = set()

    def check_topic(self, topic: str) -> None:
        """Raise `InvalidMessageError` for a name that RabbitMQ would refuse."""
        super().check_topic(topic)
        if len(topic.encode()) > MAX_SHORT:
            raise InvalidMessageError(f"topic has more than {MAX_SHORT} bytes in UTF-8")
        if self._topology.exchange is None and topic.startswith("amq."):
            raise InvalidMessageError("topic: RabbitMQ keeps names with 'amq.' for itself")
        if self._topology.exchange is None and not is_name(topic):
            raise InvalidMessageError(f"topic: the name of an exchange has {CHARACTERS}")
        if self._topology.is_shared_topic_exchange() and {"*", "#"} & set(topic.split(".")):
            # A queue is bound by the name of its topic, and would get messages of others.
            raise InvalidMessageError("topic: * and # are wildcards in a shared topic exchange")

    async def ping(self) -> None:
        """Raise `BusError` if the broker does not answer, or takes no messages."""
        await self._ready()
        connection = await self._publisher.get()
        if await is_blocked(connection):
            raise BusError(ERRORS["blocked"][1])
        try:
            async with passing_channel(connection):
                pass
        except TROUBLE as error:
            self._drop_publisher()
            raise bus_error(error, "RabbitMQ does not answer") from error

    async def _open(self) -> None:
        self._opening = asyncio.Lock()
        # Apart: a broker that is short of memory stops reading from who publishes, acks included.
        self._publisher = Link(self._broker, name=f"{self.source} publisher", **self._connecting)
        self._consumer = Link(self._broker, name=f"{self.source} consumer", **self._connecting)
        await self._publisher.get()

    async def _close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            with suppress(TimeoutError):
                async with asyncio.timeout(CALL_SECONDS):
                    await channel.close()
        await self._publisher.close()
        await self._consumer.close()

    # Publishing

    def _drop_publisher(self) -> None:
        self._publisher.drop()
        self._channels.clear()

    async def _send(self, batch: Sequence[tuple[int, WireMessage]], outcomes: Outcomes) -> None:
        connection = await self._publisher.get()
        if await is_blocked(connection):
            raise BusError(ERRORS["blocked"][1])
        waiting: list[tuple[int, Outgoing]] = []
        for index, wire in batch:
            if outcomes.admits(index):
                try:
                    waiting.append((index, self._outgoing(outcomes.messages[index], wire)))
                except PublishError as error:
                    outcomes.fail(index, error)
        while waiting:
            now, waiting = self._next_round(waiting, outcomes.messages)
            exchanges: dict[str, list[tuple[int, Outgoing]]] = {}
            for item in now:
                exchanges.setdefault(item[1].exchange, []).append(item)
            results = [
                result
                for answers in await asyncio.gather(
                    *(self._publish(connection, *each) for each in exchanges.items())
                )
                for result in answers
            ]
            for index, trouble in sorted(results, key=itemgetter(0)):
                # What follows a failure of its key has that error too, even if it was on its way
                # already and was confirmed: it is sent again, behind the one that failed.
                if outcomes.admits(index) and trouble is not None:
                    outcomes.fail(index, trouble)
            waiting = [item for item in waiting if outcomes.admits(item[0])]

    def _outgoing(self, message: MessageEnvelope, wire: WireMessage) -> Outgoing:
        if len(wire.body) > self._max_message_bytes:
            size = f"{len(wire.body)} bytes, the limit is {self._max_message_bytes}"
            raise failure("too large", size)
        routing_key = self._topology.routing_key_of(message)
        headers = wire.headers if isinstance(wire.headers, dict) else dict(wire.headers)
        message_id, content_type = headers.pop("message_id"), headers.pop("content-type")
        if wire.key is not None:
            headers.setdefault(_KEY, wire.key)
        exchange = self._topology.exchange_of(wire.topic)
        moment = max(0, int(message.occurred_at.timestamp()))
        return Outgoing(exchange, routing_key, message_id, content_type, moment, headers, wire.body)

    def _next_round(
        self, waiting: list[tuple[int, Outgoing]], messages: Sequence[MessageEnvelope]
    ) -> tuple[list[tuple[int, Outgoing]], list[tuple[int, Outgoing]]]:
        """Split off what may be written without waiting for a confirm.

        Behind a message that may well fail, the rest of its key has to wait. A route is trusted
        from its first confirm on; without trust, one message of a key is in flight at a time.
        """
        routes = {(outgoing.exchange, outgoing.routing_key) for _, outgoing in waiting}
        if routes <= self._proven and not self._strict_order:
            return waiting, []
        now: list[tuple[int, Outgoing]] = []
        later: list[tuple[int, Outgoing]] = []
        held: set[tuple[str, str]] = set()
        for index, outgoing in waiting:
            message = messages[index]
            key = message.order_key
            if key is not None:
                lane = (message.tenant_id, key)
                if lane in held:
                    later.append((index, outgoing))
                    continue
                route = (outgoing.exchange, outgoing.routing_key)
                if self._strict_order or route not in self._proven:
                    held.add(lane)
            now.append((index, outgoing))
        return now, later

    async def _publish(
        self, connection: AbstractConnection, exchange: str, items: Sequence[tuple[int, Outgoing]]
    ) -> list[tuple[int, PublishError | None]]:
        """Publish to one exchange; return what failed, or nothing if all is confirmed."""
        try:
            channel = await self._channel_for(connection, exchange)
        except PublishError as error:
            return [(index, error) for index, _ in items]
        results = await channel.publish([outgoing for _, outgoing in items])
        if channel.too_large is not None:
            self._max_message_bytes = min(self._max_message_bytes, channel.too_large)
        if channel.is_stuck:
            self._drop_publisher()
        routes = {(exchange, outgoing.routing_key) for _, outgoing in items}
        if not any(results):
            if len(self._proven) > _MAX_PROVEN:
                self._proven.clear()
            self._proven |= routes
            return []
        self._proven -= routes
        return [(index, error) for (index, _), error in zip(items, results, strict=True)]

    async def _channel_for(
        self, connection: AbstractConnection, exchange: str
    ) -> BatchChannel | SingleChannel:
        """Return the channel of *exchange*: its own, so that its troubles stay with it."""
        channel = self._channels.get(exchange)
        if channel is not None and channel.is_open:
            return channel
        async with self._opening:
            channel = self._channels.get(exchange)
            if channel is not None and channel.is_open:
                return channel
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await calling(self._topology.check_exchange(connection, exchange))
                    channel = await calling(open_channel(connection, **self._publishing))
            except TROUBLE as error:
                raise exchange_trouble(error) from error
            self._channels.pop(exchange, None)
            for name, other in list(self._channels.items())[: -_MAX_CHANNELS + 1]:
                if other.is_idle:
                    await self._channels.pop(name).close()
            self._channels[exchange] = channel
        return channel

    # Consuming

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> RabbitMQSubscription:
        name = self._topology.queue_of(topic, group)
        queue = Queue(self._topology, self._consumer, topic, name)
        subscription = RabbitMQSubscription(queue, prefetch)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await subscription.start()
        except TROUBLE as error:
            raise bus_error(error, f"cannot consume from queue {name!r}") from error
        return subscription
