"""Apache Pulsar, through pulsar-client."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from semel.envelope import check_name
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
    import pulsar
except ImportError as missing:
    raise ImportError(missing_extra("Pulsar", "pulsar")) from missing

from semel.transports.pulsar_producer import Flight, Item, Sender, kind_of
from semel.transports.pulsar_subscription import PulsarSubscription

T = TypeVar("T")

_NAME = re.compile(r"[-=:.\w]{1,200}\Z", re.ASCII)
_FULL = re.compile(r"(?:non-)?persistent://[-=:.\w]+/[-=:.\w]+/[^/]+\Z", re.ASCII)
_PARTITION = re.compile(r"-partition-\d+\Z")
_LARGE = 100 * 1024  # bytes; the client sends batches of 128 KiB
_GRACE_SECONDS = 5.0
_TROUBLE = (pulsar.PulsarException, TimeoutError)

# Batches of one key each: a mixed one would go to one member of a group as a whole.
_PRODUCER = {
    "batching_enabled": True,
    "batching_type": pulsar.BatchingType.KeyBased,
    "batching_max_publish_delay_ms": 2,
}
_CONSUMER = {
    "initial_position": pulsar.InitialPosition.Earliest,
    "batch_index_ack_enabled": True,
}
# What the guarantees stand on is not to be changed. No name and no sequence ids: with broker
# deduplication a message that is sent again with an older number would be lost silently.
_RESERVED = frozenset(
    (
        *("topic", "schema", "producer_name", "initial_sequence_id", "send_timeout_millis"),
        *("max_pending_messages", "max_pending_messages_across_partitions", "access_mode"),
        *("block_if_queue_full", "subscription_name", "consumer_type", "message_listener"),
        *("receiver_queue_size", "max_total_receiver_queue_size_across_partitions"),
        *("is_pattern_consumer", "service_url"),
    )
)


class PulsarMessageBus(BaseMessageBus):
    """Pulsar topics; a group is a Key_Shared subscription.

    *server* is `pulsar://host:6650`, `pulsar+ssl://...`, or a `pulsar.Client`, which is used but
    never closed. *client_options*, *producer_options* and *consumer_options* go to
    `pulsar.Client`, `create_producer` and `subscribe`; credentials are
    `client_options={"authentication": pulsar.AuthenticationToken(...)}`.
    A topic is `persistent://<tenant>/<namespace>/<topic>`, unless its name is such a one.
    A message that is not confirmed within *timeout_seconds* fails.

    >>> bus = PulsarMessageBus("pulsar://localhost:6650", source="shop")
    """

    system = "pulsar"
    prefix: ClassVar[str] = "ce_"

    def __init__(
        self,
        server: str | pulsar.Client,
        *,
        tenant: str = "public",
        namespace: str = "default",
        client_options: Mapping[str, Any] | None = None,
        producer_options: Mapping[str, Any] | None = None,
        consumer_options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 20.0,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if timeout_seconds <= 0:
            raise ConfigurationError("timeout_seconds must be more than 0")
        if not _NAME.match(tenant) or not _NAME.match(namespace):
            raise ConfigurationError("tenant and namespace have the characters a-zA-Z0-9_.:=-")
        for given in (client_options or {}, producer_options or {}, consumer_options or {}):
            if reserved := _RESERVED & set(given):
                raise ConfigurationError(
                    f"the bus decides about {', '.join(sorted(reserved))}: remove it"
                )
        self._url = _check_url(server) if isinstance(server, str) else None
        self._given = None if self._url is not None else server
        if self._given is not None and not hasattr(server, "create_producer"):
            raise ConfigurationError("PulsarMessageBus takes a pulsar:// URL or a pulsar.Client")
        if self._given is not None and client_options:
            raise ConfigurationError("client_options are for a client that the bus makes itself")
        self._prefix = f"persistent://{tenant}/{namespace}/"
        self._timeout = timeout_seconds
        self._for_client = {
            "operation_timeout_seconds": math.ceil(timeout_seconds),
            # It would write to the terminal; what it has to say comes as errors.
            "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            **(client_options or {}),
        }
        self._for_producer = {
            **_PRODUCER,
            **(producer_options or {}),
            "send_timeout_millis": max(1, int(timeout_seconds * 1000)),
            # Unbounded: a full queue would refuse a message and then take a later one of its key.
            "max_pending_messages": 0,
        }
        self._for_consumer = {**_CONSUMER, **(consumer_options or {})}
        self._client: Any = None
        self._producers: dict[str, asyncio.Task[Sender]] = {}
        self._flights: set[Flight] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._process = 0

    def check_topic(self, topic: str) -> None:
        """Raise `InvalidMessageError` for a name that Pulsar would refuse or misread."""
        check_name("topic", topic)
        if ("/" in topic and not _FULL.match(topic)) or _PARTITION.search(topic):
            raise InvalidMessageError(
                "a Pulsar topic is a name without / that does not end in -partition-<number>, or "
                "persistent://tenant/namespace/name"
            )

    async def ping(self) -> None:
        """Raise `BusError` if the broker does not answer."""
        await self._ready()
        name = self._prefix + "semel-ping"
        try:
            # Nothing is created by asking how many partitions a topic has.
            await self._ask(self._client.get_topic_partitions, name)
        except pulsar.TopicNotFound:
            return
        except _TROUBLE as error:
            raise BusError(f"Pulsar does not answer: {_name(error)}") from None

    async def _open(self) -> None:
        self._process = os.getpid()
        self._client = self._given or self._make_client()

    def _make_client(self) -> Any:
        try:
            return pulsar.Client(self._url, **self._for_client)
        except (TypeError, ValueError) as error:
            # Its text may repeat what was given.
            raise ConfigurationError(
                f"pulsar.Client refuses the options ({type(error).__name__})"
            ) from None
        except _TROUBLE as error:
            raise BusError(f"Pulsar cannot be reached: {_name(error)}") from None

    async def _close(self) -> None:
        waiting = [flight.done for flight in self._flights]
        if waiting:
            await asyncio.wait(waiting, timeout=self._timeout)
        for topic in list(self._producers):
            self._retire(topic)
        if self._endings:
            await asyncio.wait(self._endings, timeout=self._timeout)
        client, self._client = self._client, None
        if self._given is None:
            await self._end(client)

    async def _ready(self) -> None:
        await super()._ready()
        if self._process != os.getpid():
            raise ConfigurationError(
                "the bus was started in another process: make one after the fork, since the "
                "threads of the Pulsar client do not follow"
            )

    async def _send(self, batch: Sequence[Item], outcomes: Outcomes) -> None:
        producers = await self._find_producers(batch, outcomes)
        rest: Sequence[Item] = [item for item in batch if item[1].topic in producers]
        while rest:
            wave, rest = _divide(rest, outcomes)
            flight = Flight(wave, outcomes)
            self._flights.add(flight)
            # Also if our caller is cancelled: closing waits for what is on its way.
            flight.done.add_done_callback(partial(self._landed, flight))
            await flight.send(producers)
            await flight.land(self._timeout + _GRACE_SECONDS)
            self._landed(flight)
            for topic in flight.spent:
                self._retire(topic)

    def _landed(self, flight: Flight, _: object = None) -> None:
        self._flights.discard(flight)

    async def _find_producers(self, batch: Sequence[Item], outcomes: Outcomes) -> dict[str, Sender]:
        """Return the producers by topic; messages of topics that have none fail."""
        topics = list(dict.fromkeys(wire.topic for _, wire in batch))
        found = await asyncio.gather(*map(self._producer, topics), return_exceptions=True)
        producers: dict[str, Sender] = {}
        errors: dict[str, PublishError] = {}
        for topic, producer in zip(topics, found, strict=True):
            if isinstance(producer, PublishError):
                errors[topic] = producer
            elif isinstance(producer, BaseException):
                raise producer
            else:
                producers[topic] = producer
        for index, wire in batch if errors else ():
            if wire.topic in errors and outcomes.admits(index):
                outcomes.fail(index, errors[wire.topic])
        return producers

    async def _producer(self, topic: str) -> Sender:
        task = self._producers.get(topic)
        if task is None:
            task = asyncio.create_task(self._make_producer(topic))
            self._producers[topic] = task
        try:
            # Others may wait for it too.
            return await asyncio.shield(task)
        except PublishError:
            if self._producers.get(topic) is task:
                del self._producers[topic]
            raise

    async def _make_producer(self, topic: str) -> Sender:
        try:
            return Sender(
                await self._ask(
                    self._client.create_producer, self._full(topic), **self._for_producer
                )
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Pulsar refuses the producer's options: {error}") from None
        except _TROUBLE as error:
            name = _name(error)
            kind = kind_of(name)
            # Without a producer nothing was sent.
            kind = "destination" if kind == "unknown" else kind
            raise PublishError(f"cannot send there: Pulsar says {name}", kind=kind) from None

    def _retire(self, topic: str) -> None:
        task = self._producers.pop(topic, None)
        if task is not None:
            self._later(self._end_producer(task))

    def _later(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end_producer(self, task: asyncio.Task[Sender]) -> None:
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await self._end(task.result().producer)

    async def _end(self, what: Any) -> None:
        try:
            await self._ask(what.close)
        except _TROUBLE:  # a lost connection has closed it already
            return

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> PulsarSubscription:
        queue, since = PulsarSubscription.queue_size(prefetch), time.time()
        # A client of its own: one that reports a failure may have made a consumer nevertheless,
        # and that gets messages which nobody reads until its client is closed.
        own = None if self._given is not None else self._make_client()
        try:
            consumer = await self._ask(
                (own or self._client).subscribe,
                self._full(topic),
                group,
                consumer_type=pulsar.ConsumerType.KeyShared,
                receiver_queue_size=queue,
                max_total_receiver_queue_size_across_partitions=queue,
                of=own,
                **self._for_consumer,
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Pulsar refuses the consumer's options: {error}") from None
        except _TROUBLE as error:
            raise BusError(f"cannot subscribe: Pulsar says {_name(error)}") from None
        return PulsarSubscription(consumer, topic, prefetch, since=since, client=own)

    def _full(self, topic: str) -> str:
        return topic if "://" in topic else self._prefix + topic

    async def _ask(
        self, call: Callable[..., T], *arguments: Any, of: Any = None, **options: Any
    ) -> T:
        """Make a blocking call in a thread, for as long as anybody waits for an answer.

        What is made too late is closed: it would be nobody's. So is the client *of* a failed call.
        """
        answer = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **options))
        try:
            async with asyncio.timeout(self._timeout + _GRACE_SECONDS):
                return await asyncio.shield(answer)
        except BaseException:
            self._later(self._abandon(answer, of))
            raise

    async def _abandon(self, answer: asyncio.Future[Any], client: Any) -> None:
        # Not before it has answered: a client that is closed then answers never.
        await asyncio.wait((answer,))
        made = None if answer.cancelled() or answer.exception() else answer.result()
        for what in (made, client):
            if hasattr(what, "close"):
                await self._end(what)


def _divide(items: Sequence[Item], outcomes: Outcomes) -> tuple[list[Item], list[Item]]:
    """Return what is sent now, and what waits: the followers of a large message of their key.

    Only a large one may be refused for its own sake, and then none of them must be sent.
    """
    now: list[Item] = []
    later: list[Item] = []
    barred: set[tuple[str, str]] = set()
    for item in items:
        index, wire = item
        lane = None if wire.key is None else (outcomes.messages[index].tenant_id, wire.key)
        if lane is not None and lane in barred:
            later.append(item)
            continue
        now.append(item)
        if lane is not None and _is_large(wire):
            barred.add(lane)
    return now, later


def _name(error: Exception) -> str:
    return "Timeout" if isinstance(error, TimeoutError) else type(error).__name__


def _is_large(wire: WireMessage) -> bool:
    return len(wire.body) > _LARGE


def _check_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    # The text is not repeated: somebody may have put a password into it.
    if not separator or scheme.lower() not in ("pulsar", "pulsar+ssl") or not rest:
        raise ConfigurationError("a Pulsar URL begins with pulsar:// or pulsar+ssl://")
    if "@" in rest:
        raise ConfigurationError(
            "a Pulsar URL has no user and password: give "
            'client_options={"authentication": pulsar.AuthenticationToken(...)}'
        )
    return f"{scheme.lower()}://{rest}"
