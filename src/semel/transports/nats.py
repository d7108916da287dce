"""NATS JetStream.

A topic is spread over the partitions of one stream: subject `<prefix>.<topic>.p<n>`, with *n* the
CRC-32 of the order key. Each group has one durable consumer per partition.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote
from zlib import crc32

from semel.envelope import check_name
from semel.errors import (
    BusError,
    ConfigurationError,
    InvalidMessageError,
    PublishError,
    describe,
    missing_extra,
)

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as Interest
    from nats.js.api import RetentionPolicy, StorageType, StreamConfig, StreamInfo
except ImportError as missing:
    raise ImportError(missing_extra("NATS", "nats")) from missing

from semel.transports.base import BaseMessageBus, Outcomes
from semel.transports.nats_delivery import KEY_HEADER
from semel.transports.nats_publishing import Batch, Flights, classify
from semel.transports.nats_subscription import NatsSubscription
from semel.wire import Mode, WireMessage

_PARTITIONS = 16
_DESCRIPTION = "semel, partitions: "
_STREAM_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_UNFIT = re.compile(r"[\s*>\x7f-\x9f]|^[.$]|\.\.|\.$")
_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]+\Z")
_DAY = 24 * 3600.0
_CLOSE_SECONDS = 2.0


class NatsMessageBus(BaseMessageBus):
    """JetStream, by URL or through a connected client, which stays open and the caller's.

    The stream is created if it is missing, with *replicas*, *retention_seconds* and
    *duplicate_seconds*, unless *create* is false; an existing one is used as it is.
    *partitions* counts for a new stream; an existing one of semel keeps its own number.
    *options* go to `nats.connect`: credentials, TLS and the like.

    >>> bus = NatsMessageBus("nats://localhost:4222", stream="shop")  # doctest: +SKIP
    """

    system = "nats"
    prefix: ClassVar[str] = "ce-"

    def __init__(
        self,
        server: str | Sequence[str] | Client,
        *,
        stream: str = "semel",
        subject_prefix: str | None = None,
        create: bool = True,
        replicas: int = 1,
        partitions: int = _PARTITIONS,
        retention_seconds: float = 7 * _DAY,
        duplicate_seconds: float = 120.0,
        ack_seconds: float = 30.0,
        timeout_seconds: float = 10.0,
        domain: str | None = None,
        options: Mapping[str, Any] | None = None,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if not _STREAM_NAME.match(stream):
            raise ConfigurationError("a stream's name consists of letters, digits, - and _")
        if min(partitions, replicas) < 1 or partitions > 1024:
            raise ConfigurationError("replicas is at least 1, partitions from 1 to 1024")
        if ack_seconds < 1 or timeout_seconds <= 0:
            raise ConfigurationError("ack_seconds is at least 1, timeout_seconds more than 0")
        self._given = server if isinstance(server, Client) else None
        self._servers = [] if isinstance(server, Client) else _split(server)
        self._stream = stream
        self._root = f"{stream if subject_prefix is None else subject_prefix}.".lstrip(".")
        self._create = create
        self._partitions = partitions
        self._config = StreamConfig(
            name=stream,
            subjects=[f"{self._root}>"],
            description=f"{_DESCRIPTION}{partitions}",
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=replicas,
            max_age=retention_seconds,
            duplicate_window=min(duplicate_seconds, retention_seconds or duplicate_seconds),
        )
        self._ack_seconds = ack_seconds
        self._timeout = timeout_seconds
        self._domain = domain
        self._options = dict(options or {})
        self._client: Client
        self._inbox = ""
        self._interest: Interest | None = None
        self._flights = Flights()
        self._checked_stream = False

    @property
    def partitions(self) -> int:
        """Over how many subjects each topic is spread; known for sure once the bus is started."""
        return self._partitions

    def check_topic(self, topic: str) -> None:
        """Raise `InvalidMessageError` for a topic that is no NATS subject."""
        check_name("topic", topic)
        if _UNFIT.search(topic):
            raise InvalidMessageError(
                "a topic on NATS has no spaces, * or >, no empty part between dots, "
                "and does not begin with $"
            )

    def subject(self, topic: str, key: str | None, message_id: str) -> str:
        """Return where a message goes; one without a key is placed by its id."""
        number = crc32((message_id if key is None else key).encode()) % self._partitions
        return f"{self._root}{topic}.p{number}"

    async def ping(self) -> None:
        """Raise `BusError` if JetStream does not answer."""
        await self._ready()
        try:
            await (await self._live()).jetstream(**self._api).account_info()
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusError(f"NATS does not answer: {describe(error)}") from error

    # Connection

    @property
    def _api(self) -> dict[str, Any]:
        return {"timeout": self._timeout, **({"domain": self._domain} if self._domain else {})}

    async def _open(self) -> None:
        self._client = await self._connect() if self._given is None else self._given
        try:
            await self._prepare()
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        interest, self._interest = self._interest, None
        if self._given is None:
            await _end(self._client)
        elif interest is not None:
            with suppress(nats.errors.Error, OSError):
                await interest.unsubscribe()

    async def _connect(self) -> Client:
        client = Client()
        seen: list[Exception] = []

        async def note(error: Exception) -> None:
            if client.is_connected:
                self._flights.note(error)
            else:
                seen[:] = [error]

        # Tried once here, for whoever starts the bus decides about trying again; then for ever.
        first = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.1}
        options = {"connect_timeout": 5, "ping_interval": 20, **self._options, **first}
        try:
            async with asyncio.timeout(self._timeout):
                await client.connect(self._servers, error_cb=note, **options)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await _end(client)
            reason = seen[0] if seen and isinstance(error, nats.errors.NoServersError) else error
            text = f"cannot connect to NATS: {describe(reason)}"
            raise PublishError(text, kind="destination") from error
        except BaseException:
            await _end(client)
            raise
        client.options.update(
            allow_reconnect=True, max_reconnect_attempts=-1, reconnect_time_wait=0.25
        )
        return client

    async def _live(self) -> Client:
        """Return the connection; one that the server has ended for good is made anew."""
        if self._client.is_closed and self._given is None:
            async with self._lock:
                if self._closed:
                    raise BusError("the bus was closed meanwhile")
                if self._client.is_closed:
                    self._client = await self._connect()
                    await self._prepare()
        if not self._client.is_connected:
            raise PublishError("there is no connection to NATS", kind="destination")
        return self._client

    async def _prepare(self) -> None:
        client = self._client
        if not client.is_connected:
            raise PublishError("there is no connection to NATS", kind="destination")
        try:
            await self._check_stream(client)
            self._inbox = client.new_inbox()
            self._interest = await client.subscribe(f"{self._inbox}.*", cb=self._answered)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise PublishError(f"NATS refuses: {describe(error)}", kind="destination") from error

    async def _answered(self, message: Msg) -> None:
        self._flights.land(message)

    # Stream

    async def _check_stream(self, client: Client) -> None:
        manager = client.jetstream(**self._api)
        try:
            info = await manager.stream_info(self._stream)
        except nats.js.errors.NotFoundError:
            if not self._create:
                text = f"there is no stream {self._stream!r}, and this bus is not to create it"
                raise PublishError(text, kind="destination") from None
            # Two processes that create the same at the same time both succeed.
            info = await manager.add_stream(self._config)
        self._read_config(info)
        self._checked_stream = True

    def _read_config(self, info: StreamInfo) -> None:
        subject = f"{self._root}topic.p0"
        if not any(_covers(pattern, subject) for pattern in info.config.subjects or ()):
            raise ConfigurationError(
                f"the stream {self._stream!r} does not take the subjects of this bus: add "
                f"{self._root + '>'!r} to it, or set subject_prefix to what it takes"
            )
        described = info.config.description or ""
        if described.startswith(_DESCRIPTION):
            # All who publish and subscribe must divide alike, whatever they were told.
            with suppress(ValueError):
                self._partitions = int(described.removeprefix(_DESCRIPTION))

    # Work

    async def _send(self, batch: Sequence[tuple[int, WireMessage]], outcomes: Outcomes) -> None:
        client = await self._live()
        if not self._checked_stream:
            try:
                await self._check_stream(client)
            except (nats.errors.Error, OSError, TimeoutError) as error:
                raise PublishError(describe(error), kind=classify(error)) from error
        run = Batch(client, self._flights, outcomes, inbox=self._inbox, timeout=self._timeout)
        for index, wire in batch:
            run.add(index, self._address(wire, outcomes.messages[index].tenant_id))
        await run.run()
        # A stream that is gone may be created again, by us even.
        self._checked_stream = not run.unanswered

    def _address(self, wire: WireMessage, tenant_id: str) -> tuple[str, dict[str, str], bytes]:
        headers = dict(wire.headers)
        message_id = headers["message_id"]
        if wire.key is not None and "ce-partitionkey" not in headers:
            headers[KEY_HEADER] = quote(wire.key)
        # The stream holds all topics and tenants: an id alone might be that of another message.
        text = f"{wire.topic}:{tenant_id}:{message_id}"
        headers["Nats-Msg-Id"] = text if _PLAIN.match(text) else quote(text, safe=":/")
        headers["Nats-Expected-Stream"] = self._stream
        return self.subject(wire.topic, wire.key, message_id), headers, wire.body

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> NatsSubscription:
        client = await self._live()
        subscription = NatsSubscription(
            client,
            client.jetstream(**self._api),
            api=f"$JS.{self._domain}.API" if self._domain else "$JS.API",
            stream=self._stream,
            topic=topic,
            group=group,
            subjects=[f"{self._root}{topic}.p{n}" for n in range(self._partitions)],
            prefetch=prefetch,
            ack_seconds=self._ack_seconds,
        )
        try:
            await subscription.start()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await subscription.close()
            raise BusError(f"cannot subscribe: {describe(error)}") from error
        except BaseException:
            await subscription.close()
            raise
        return subscription


async def _end(client: Client) -> None:
    # After a TLS handshake that failed the client waits for ever for its connection to close.
    with suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()


def _split(server: str | Sequence[str]) -> list[str]:
    """Accept what NATS accepts: one URL, a comma-separated list of them, or a sequence."""
    return server.split(",") if isinstance(server, str) else list(server)


def _covers(pattern: str, subject: str) -> bool:
    parts, wanted = pattern.split("."), subject.split(".")
    for number, part in enumerate(parts):
        if part == ">":
            return len(wanted) > number
        if number >= len(wanted) or part not in ("*", wanted[number]):
            # `topic` stands for any: a stream may list the topics that it takes.
            if number < len(wanted) and wanted[number] == "topic":
                continue
            return False
    return len(parts) == len(wanted)
