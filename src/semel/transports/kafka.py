"""Apache Kafka, through confluent-kafka."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from semel.envelope import check_name
from semel.errors import (
    BusError,
    ConfigurationError,
    InvalidMessageError,
    PublishError,
    missing_extra,
)
from semel.transports.base import BaseMessageBus, Outcomes
from semel.wire import Mode

try:
    from confluent_kafka import KafkaException, admin
except ImportError as missing:
    raise ImportError(missing_extra("Kafka", "kafka")) from missing

from semel.transports.kafka_producer import Client, ClientLog, Item, explain
from semel.transports.kafka_subscription import KafkaSubscription

_admin: Any = admin  # its types are incomplete
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_PROPERTY = re.compile(r"property:? [\"`]([\w.]+)[\"`]")
_PING_SECONDS = 5.0
_ADMIN_SECONDS = 10.0

_COMMON = {
    "client.id": "semel",
    "allow.auto.create.topics": False,
    "reconnect.backoff.max.ms": 2000,
}
_PRODUCER = {
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "topic.metadata.propagation.max.ms": 5000,
    "enable.gapless.guarantee": True,
    # Ours comes first: with librdkafka's a later message of a key could outlive an earlier one.
    "message.timeout.ms": 0,
}
_CONSUMER = {
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "cooperative-sticky",
    "heartbeat.interval.ms": 1000,  # by which a member learns of a rebalance
    "topic.metadata.refresh.interval.ms": 30_000,
}
# What the guarantees stand on is not to be changed.
_FIXED_PRODUCER = {"enable.idempotence": True, "acks": "all"}
_FIXED_CONSUMER = {"enable.auto.commit": False, "enable.auto.offset.store": False}
_RESERVED = frozenset(
    (
        *("enable.idempotence", "acks", "request.required.acks", "transactional.id"),
        *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "group.id"),
        *("message.timeout.ms", "delivery.timeout.ms", "delivery.report.only.error"),
        *("error_cb", "on_delivery", "on_commit", "logger"),
    )
)


class KafkaMessageBus(BaseMessageBus):
    """Kafka topics; a group of this library is a consumer group of Kafka.

    *servers* is `host:9092`, `kafka://host:9092,other:9092`, or a dictionary of librdkafka's
    settings with at least `bootstrap.servers`, for TLS and SASL for example. *producer_options*
    and *consumer_options* are more of them, for one side only.
    A batch that is not confirmed within *timeout_seconds* fails.
    Topics are never created, unless *create_topics* is true: for tests and demos.

    >>> bus = KafkaMessageBus("kafka://localhost:9092", source="shop")
    """

    system = "kafka"
    prefix: ClassVar[str] = "ce_"

    def __init__(
        self,
        servers: str | Mapping[str, Any],
        *,
        producer_options: Mapping[str, Any] | None = None,
        consumer_options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 20.0,
        create_topics: bool = False,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if timeout_seconds <= 0:
            raise ConfigurationError("timeout_seconds must be more than 0")
        common = {**_COMMON, **_settings(servers)}
        options = dict(consumer_options or {})
        consumer = dict(_CONSUMER)
        if options.get("group.protocol", common.get("group.protocol")) == "consumer":
            # The broker decides about these.
            del consumer["partition.assignment.strategy"], consumer["heartbeat.interval.ms"]
        for given in (common, producer_options or {}, options):
            if reserved := _RESERVED & set(given):
                raise ConfigurationError(
                    f"the bus decides about {', '.join(sorted(reserved))}: remove it"
                )
        self._common = common
        self._for_producer = {**_PRODUCER, **common, **(producer_options or {}), **_FIXED_PRODUCER}
        self._for_consumer = {**consumer, **common, **options, **_FIXED_CONSUMER}
        self._timeout = timeout_seconds
        self._create_topics = create_topics
        self._created: set[str] = set()
        self._client: Client | None = None
        self._single: Client | None = None
        self._single_lock: asyncio.Lock
        self._admin: Any = None
        self._endings: set[asyncio.Task[None]] = set()
        self._process = 0

    def check_topic(self, topic: str) -> None:
        """Raise `InvalidMessageError` for a name that Kafka would refuse."""
        check_name("topic", topic)
        if not _TOPIC.match(topic) or topic in (".", ".."):
            raise InvalidMessageError(
                "a Kafka topic has at most 249 of the characters a-z A-Z 0-9 . _ -"
            )

    async def ping(self) -> None:
        """Raise `BusError` if no broker answers."""
        await self._ready()
        client = self._producer()
        try:
            await asyncio.to_thread(client.metadata, min(_PING_SECONDS, self._timeout))
        except KafkaException as error:
            client.serve()
            trouble = client.trouble or error.args[0]
            raise BusError(f"Kafka does not answer: {explain(trouble)}") from None

    async def declare(
        self,
        topic: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create *topic* unless it exists, with the broker's defaults where -1 is given."""
        await self._ready()
        self.check_topic(topic)
        new = _admin.NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        future = self.admin().create_topics([new], operation_timeout=_ADMIN_SECONDS)[topic]
        try:
            await asyncio.wrap_future(future)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise BusError(f"cannot create topic {topic}: {explain(error.args[0])}") from None
        self._created.add(topic)

    def admin(self) -> Any:
        """Return the client for questions about topics and groups."""
        if self._admin is None:
            self._admin = _admin.AdminClient({**self._common, "logger": ClientLog()})
        return self._admin

    async def _open(self) -> None:
        self._process = os.getpid()
        self._single_lock = asyncio.Lock()
        self._client = self._make_client({})

    async def _close(self) -> None:
        clients = [client for client in (self._client, self._single) if client is not None]
        self._client = self._single = None
        await asyncio.gather(*(client.close(self._timeout) for client in clients))
        await asyncio.gather(*self._endings)
        holder, self._admin = [self._admin], None
        await asyncio.to_thread(holder.clear)

    async def _ready(self) -> None:
        await super()._ready()
        if self._process != os.getpid():
            raise ConfigurationError(
                "the bus was started in another process: make one after the fork, since the "
                "threads of the Kafka client do not follow"
            )

    async def _send(self, batch: Sequence[Item], outcomes: Outcomes) -> None:
        for topic in {wire.topic for _, wire in batch} if self._create_topics else ():
            if topic not in self._created:
                await self.declare(topic)
        await self._ship(batch, outcomes, self._now() + self._timeout)

    async def _ship(self, items: Sequence[Item], outcomes: Outcomes, deadline: float) -> None:
        """Send *items*; what came back unsent goes again, and what is suspect goes alone.

        A client that had to give up because of one message returns all the others unsent.
        """
        while items:
            flight = await self._producer().send(items, outcomes, deadline)
            final = self._closed or self._now() >= deadline
            items, suspects = flight.settle(outcomes, alone=False, final=final)
            if suspects:
                waiting: list[Item] = []
                for item in items:
                    if item[0] in suspects:
                        await self._ship(waiting, outcomes, deadline)
                        waiting = []
                        await self._ship_alone(item, outcomes, deadline)
                    else:
                        waiting.append(item)
                items = waiting

    async def _ship_alone(self, item: Item, outcomes: Outcomes, deadline: float) -> None:
        async with self._single_lock:
            if self._now() >= deadline:
                text = "refused together with others, and no time was left to try it alone"
                if outcomes.admits(item[0]):
                    outcomes.fail(item[0], PublishError(text, kind="transient"))
                return
            if self._single is None or not self._single.alive:
                self._retire(self._single)
                # Not idempotent: a refusal would cost such a client half a second.
                self._single = self._make_client(
                    {"enable.idempotence": False, "linger.ms": 0, "max.in.flight": 1}
                )
            flight = await self._single.send([item], outcomes, deadline)
            flight.settle(outcomes, alone=True, final=True)

    def _producer(self) -> Client:
        if self._closed:
            raise BusError("the bus is closed: call start() to use it again")
        if self._client is None or not self._client.alive:
            self._retire(self._client)
            self._client = self._make_client({})
        return self._client

    def _make_client(self, settings: Mapping[str, Any]) -> Client:
        try:
            merged = {**self._for_producer, **settings}
            if not merged["enable.idempotence"]:
                del merged["enable.gapless.guarantee"]
            return Client(merged)
        except (KafkaException, ValueError, TypeError) as error:
            raise refused(error) from None

    def _retire(self, client: Client | None) -> None:
        if client is not None:
            ending = asyncio.get_running_loop().create_task(client.close(self._timeout))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> KafkaSubscription:
        if self._create_topics and topic not in self._created:
            await self.declare(topic)
        try:
            return KafkaSubscription(self._for_consumer, self.admin, topic, group, prefetch)
        except (KafkaException, ValueError, TypeError) as error:
            raise refused(error) from None

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def refused(error: Exception) -> ConfigurationError:
    """Say which setting librdkafka refuses, never its value."""
    found = _PROPERTY.search(str(error))
    what = f"the setting {found[1]}" if found else "the settings"
    return ConfigurationError(f"the Kafka client refuses {what}: see librdkafka's CONFIGURATION.md")


def _settings(servers: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(servers, str):
        return dict(servers)
    scheme, separator, rest = servers.rpartition("://")
    rest = rest.rstrip("/")
    if separator and scheme.lower() != "kafka":
        raise ConfigurationError("a Kafka URL begins with kafka://")
    # The text is not repeated: somebody may have put a password into it.
    if not rest or any(character in rest for character in "@/?#"):
        raise ConfigurationError(
            "the Kafka servers are host:port, with commas between several; user, password and "
            "TLS go into a dictionary of settings: sasl.username, sasl.password, ssl.ca.location"
        )
    return {"bootstrap.servers": rest}
