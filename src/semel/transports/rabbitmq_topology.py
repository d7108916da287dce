"""Which exchanges and queues stand for topics and groups, and how they are declared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from aiormq.abc import AbstractChannel, AbstractConnection

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, InvalidMessageError
from semel.transports.amqp_frames import MAX_SHORT
from semel.transports.rabbitmq_errors import TROUBLE, bus_error, calling, failure
from semel.transports.rabbitmq_link import Link, passing_channel

_DEAD = ".dead"
_NAME = re.compile(r"[a-zA-Z0-9_.:@#,/+ -]*")
_ODD = re.compile(r"[^a-zA-Z0-9_.:@#,/ -]")
CHARACTERS = "letters a to z, digits, spaces and any of -_.:@#,/+"
_FRAMES = 1000  # three make a message; aiormq's ten are too few for a stream of them


def queue_name(topic: str, group: str) -> str:
    """Return `<topic>.<group>`, and `+` with hexadecimal digits for what a name cannot have.

    With a dot of its own a group could get another one's queue; so could a group called like the
    end of the names of dead letter queues.
    """
    group = _escaped(group).replace(".", "+2E")
    return f"{_escaped(topic)}.{'+64ead' if group == 'dead' else group}"


def _escaped(name: str) -> str:
    return _ODD.sub(lambda odd: "".join(f"+{byte:02X}" for byte in odd[0].encode()), name)


def is_name(name: str) -> bool:
    """Tell whether aiormq takes it for an exchange or a queue; RabbitMQ itself takes more."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The settings of `RabbitMQMessageBus` that concern exchanges and queues."""

    exchange: str | None
    exchange_type: str
    queue: Callable[[str, str], str]
    queue_type: Literal["quorum", "classic"]
    single_active_consumer: bool
    bindings: Mapping[str, Sequence[str]]
    declare: bool
    dead_letter_exchange: str | None
    delivery_limit: int | None

    def exchange_of(self, topic: str) -> str:
        """Return where messages of *topic* are published."""
        return topic if self.exchange is None else self.exchange

    def routing_key_of(self, message: MessageEnvelope) -> str:
        """Return its own key, or its type where its topic has a topic exchange, or its topic."""
        key = message.routing_key
        if key is None:
            key = message.event_type if self._is_own_topic_exchange() else message.topic
        if len(key) * 4 > MAX_SHORT and len(key.encode()) > MAX_SHORT:
            raise failure("not encodable", f"the routing key has more than {MAX_SHORT} bytes")
        return key

    def queue_of(self, topic: str, group: str) -> str:
        """Return the queue of *group*."""
        name = self.queue(topic, group)
        if not is_name(name):
            raise ConfigurationError(
                f"`queue` gives {name[:300]!r}: a queue's name has {CHARACTERS}"
            )
        if self.declare and self.dead_letter_exchange is not None and name.endswith(_DEAD):
            raise ConfigurationError(
                f"the queue {name!r} would be that of another group's dead letters: give `queue` "
                f"names that do not end in {_DEAD!r}"
            )
        if len(name.encode()) > MAX_SHORT - len(_DEAD):
            raise InvalidMessageError(
                f"topic and group make a queue name of more than {MAX_SHORT - len(_DEAD)} bytes"
            )
        return name

    async def check_exchange(self, connection: AbstractConnection, exchange: str) -> None:
        """Declare *exchange*, or raise aiormq's error if it should exist and does not."""
        if exchange:
            async with passing_channel(connection) as channel:
                await self._declare_exchange(channel, exchange, passive=not self.declare)

    async def declare_queue(self, channel: AbstractChannel, topic: str, name: str) -> None:
        """Declare the queue with its dead letters, and bind it to the exchange of *topic*."""
        arguments: dict[str, Any] = {"x-queue-type": self.queue_type}
        if self.single_active_consumer:
            arguments["x-single-active-consumer"] = True
        if self.dead_letter_exchange is not None:
            arguments |= await self._declare_dead_letters(channel, name + _DEAD)
        if self.delivery_limit is not None and self.queue_type == "quorum":
            arguments["x-delivery-limit"] = self.delivery_limit
        await channel.queue_declare(name, durable=True, arguments=arguments)
        if exchange := self.exchange_of(topic):
            await self._declare_exchange(channel, exchange)
            default = ["#"] if self._is_own_topic_exchange() else [topic]
            for key in self.bindings.get(topic, default):
                await channel.queue_bind(name, exchange, routing_key=key)

    async def _declare_dead_letters(self, channel: AbstractChannel, name: str) -> dict[str, Any]:
        exchange = self.dead_letter_exchange or ""
        await channel.exchange_declare(exchange, exchange_type="direct", durable=True)
        kind: dict[str, Any] = {"x-queue-type": self.queue_type}
        await channel.queue_declare(name, durable=True, arguments=kind)
        await channel.queue_bind(name, exchange, routing_key=name)
        arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": name}
        if self.queue_type == "quorum":
            # Else a dead letter is lost if the broker dies between the two queues.
            arguments["x-dead-letter-strategy"] = "at-least-once"
            arguments["x-overflow"] = "reject-publish"
        return arguments

    async def _declare_exchange(
        self, channel: AbstractChannel, exchange: str, *, passive: bool = False
    ) -> None:
        # Those of the broker are there, and may not be declared.
        await channel.exchange_declare(
            exchange,
            exchange_type=self.exchange_type,
            durable=True,
            passive=passive or exchange.startswith("amq."),
        )

    def is_shared_topic_exchange(self) -> bool:
        """Tell whether names of topics are patterns for the broker."""
        return self.exchange is not None and self.exchange_type == "topic"

    def _is_own_topic_exchange(self) -> bool:
        return self.exchange is None and self.exchange_type == "topic"


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of a group, for its subscription."""

    topology: Topology
    link: Link
    topic: str
    name: str

    async def open(self) -> AbstractChannel:
        """Return a fresh channel, the queue being there if it is ours to declare."""
        connection = await self.link.get()
        channel = await connection.channel(publisher_confirms=False, frame_buffer_size=_FRAMES)
        try:
            if self.topology.declare:
                await self.topology.declare_queue(channel, self.topic, self.name)
        except BaseException:
            with suppress(*TROUBLE):
                await calling(channel.close())
            raise
        return channel

    async def depth(self) -> int:
        """Return how many messages are ready in the queue."""
        connection = await self.link.get()
        try:
            async with passing_channel(connection) as channel:
                answer = await channel.queue_declare(self.name, passive=True)
        except TROUBLE as error:
            raise bus_error(error, f"queue {self.name!r}") from error
        return answer.message_count or 0
