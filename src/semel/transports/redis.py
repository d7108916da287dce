"""Redis Streams.

A topic is spread over partitions, one stream each: `<prefix>:{<topic>}:<n>`, with *n* the CRC-32
of the order key. An entry has one field per header, and the body in `data`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from semel.errors import (
    BusError,
    ConfigurationError,
    PublishError,
    PublishErrorKind,
    describe,
    missing_extra,
)

try:
    from redis import exceptions
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as missing:
    raise ImportError(missing_extra("Redis", "redis")) from missing

from semel.transports import redis_scripts as scripts
from semel.transports.base import BaseMessageBus, Outcomes
from semel.transports.redis_subscription import RedisSubscription
from semel.wire import Mode, WireMessage

_CHUNK = 1000  # Redis does nothing else meanwhile
_PARTITIONS = 16
_LARGEST = 512 * 1024 * 1024  # Redis's own limit, proto-max-bulk-len
_TROUBLE = (exceptions.RedisError, OSError, TimeoutError)


class Row(NamedTuple):
    """One line of the error table; docs/transports/redis.md shows them all."""

    kind: PublishErrorKind
    meaning: str


ERRORS: Mapping[str, Row] = {
    "OOM": Row("destination", "out of memory: maxmemory is reached and nothing may be evicted"),
    "READONLY": Row("destination", "the server is a read-only replica"),
    "NOAUTH": Row("destination", "the server wants a password and got none"),
    "WRONGPASS": Row("destination", "wrong user or password"),
    "NOPERM": Row("destination", "the user may not run the command or write the key"),
    "WRONGTYPE": Row("destination", "the key of the stream holds something else"),
    "MISCONF": Row("destination", "the server cannot write its snapshot or append-only file"),
    "NOREPLICAS": Row("destination", "fewer replicas than min-replicas-to-write"),
    "LOADING": Row("destination", "the server is loading its data"),
    "BUSY": Row("destination", "the server is busy with a script"),
    "MASTERDOWN": Row("destination", "the replica has lost its master"),
    "CLUSTERDOWN": Row("destination", "the cluster is down"),
    "MOVED": Row("destination", "another node of a cluster holds the key: not supported"),
    "connect": Row("destination", "no connection; not sent"),
    "lost": Row("unknown", "the connection was lost or timed out before the answer came"),
    "too large": Row("permanent", "the body exceeds max_bytes; not sent"),
    "other": Row("transient", "any other refusal"),
}
# redis-py cuts off the word of the errors that have a class of their own.
_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.MovedError, "MOVED"),
)


def sign_of(error: BaseException) -> str:
    """Return the line of the table that *error* belongs to."""
    for kind, sign in _CLASSES:
        if isinstance(error, kind):
            return sign
    text = str(error)
    if isinstance(error, exceptions.ResponseError):
        word = text.partition(" ")[0]
        return word if word in ERRORS and word.isupper() else "other"
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return "connect" if "connecting to" in text else "lost"
    return "other"


def classify(error: BaseException) -> PublishErrorKind:
    """Return the kind of what redis-py raised."""
    return ERRORS[sign_of(error)].kind


class RedisMessageBus(BaseMessageBus):
    """Redis Streams, by URL or through a client, which stays open and the caller's.

    *partitions* counts for new topics; one that exists keeps its number. A topic keeps about
    *maxlen* entries (None: all) for groups that come later, and whatever a group has not acked.
    A member that is silent for *claim_after* seconds is dead, and others take over.
    *options* go to `Redis.from_url`: credentials, TLS and the like.

    >>> bus = RedisMessageBus("redis://localhost:6379/0")  # doctest: +SKIP
    """

    system = "redis"

    def __init__(
        self,
        server: str | Redis,
        *,
        key_prefix: str = "semel",
        partitions: int = _PARTITIONS,
        maxlen: int | None = 100_000,
        claim_after: float = 15.0,
        max_bytes: int = _LARGEST,
        wait_replicas: int = 0,
        timeout_seconds: float = 10.0,
        options: Mapping[str, Any] | None = None,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if not 1 <= partitions <= 1024:
            raise ConfigurationError("partitions is from 1 to 1024")
        if maxlen is not None and maxlen < 0:
            raise ConfigurationError("maxlen is a number of messages, or None to keep all")
        if claim_after < 1 or timeout_seconds <= 0:
            raise ConfigurationError("claim_after is at least 1, timeout_seconds more than 0")
        self._given = server if isinstance(server, Redis) else None
        self._url = "" if isinstance(server, Redis) else server
        given: Any = self._given
        if given is not None and given.get_encoder().decode_responses:
            raise ConfigurationError("the client decodes what it reads: set decode_responses=False")
        self._prefix = key_prefix
        self._partitions = partitions
        self._maxlen = maxlen
        self._claim_after = claim_after
        self._max_bytes = max_bytes
        self._wait_replicas = wait_replicas
        self._timeout = timeout_seconds
        self._options = dict(options or {})
        self._client: Any  # half of its methods have no types
        self._known: dict[str, int] = {}

    def stream(self, topic: str, number: int) -> str:
        """Return the key of one partition of *topic*."""
        return f"{self._base(topic)}:{number}"

    async def partitions(self, topic: str) -> int:
        """Return over how many streams *topic* is spread."""
        await self._ready()
        await self._learn([topic])
        return self._known[topic]

    async def ping(self) -> None:
        """Raise `BusError` if Redis does not answer."""
        await self._ready()
        try:
            await self._client.execute_command("PING")
        except _TROUBLE as error:
            raise BusError(f"Redis does not answer: {describe(error)}") from error

    def _base(self, topic: str) -> str:
        # The braces put all keys of a topic into one slot of a cluster.
        return f"{self._prefix}:{{{topic}}}"

    async def _open(self) -> None:
        if self._given is not None:
            self._client = self._given
            return
        settings = {"socket_timeout": self._timeout, "socket_connect_timeout": 5, **self._options}
        try:
            # No retries: a client that sends a batch again says nothing about the first time.
            self._client = Redis.from_url(self._url, retry=Retry(NoBackoff(), 0), **settings)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"not a Redis URL or option: {describe(error)}") from None
        try:
            await self._client.execute_command("PING")
        except _TROUBLE as error:
            await self._close()
            text = f"cannot connect to Redis: {describe(error)}"
            raise PublishError(text, kind="destination") from error
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        self._known.clear()
        if self._given is None:
            with suppress(*_TROUBLE):
                await self._client.aclose()

    async def _send(self, batch: Sequence[tuple[int, WireMessage]], outcomes: Outcomes) -> None:
        trouble: PublishError | None = None
        for start in range(0, len(batch), _CHUNK):
            chunk = batch[start : start + _CHUNK]
            if trouble is None:
                trouble = await self._send_chunk(chunk, outcomes)
            else:
                # Nothing is sent after trouble with the server: what comes later would overtake.
                later = PublishError(f"not sent, after: {trouble}", kind="destination")
                for index, _ in chunk:
                    if outcomes.admits(index):
                        outcomes.fail(index, later)

    async def _send_chunk(
        self, chunk: Sequence[tuple[int, WireMessage]], outcomes: Outcomes
    ) -> PublishError | None:
        """Add a chunk with one script: in one round trip, and as a whole or not at all."""
        indexes: list[int] = []
        streams: dict[str, int] = {}
        arguments: list[int | bytes] = []
        try:
            await self._learn({wire.topic for _, wire in chunk})
            for index, wire in chunk:
                if not outcomes.admits(index):
                    continue
                if len(wire.body) > self._max_bytes:
                    text = f"{ERRORS['too large'].meaning} ({self._max_bytes} bytes)"
                    outcomes.fail(index, PublishError(text, kind="permanent"))
                    continue
                indexes.append(index)
                place = streams.setdefault(self._place(wire), len(streams) + 1)
                arguments += (place, pack(wire))
            refused = await self._add(list(streams), arguments) if indexes else []
        except _TROUBLE as error:
            failure = PublishError(describe(error), kind=classify(error))
            for index, _ in chunk:
                if outcomes.admits(index):
                    outcomes.fail(index, failure)
            return failure
        trouble: PublishError | None = None
        for position, text in refused:
            reason = exceptions.ResponseError(text.decode("utf-8", "replace"))
            if outcomes.admits(indexes[int(position)]):
                trouble = PublishError(describe(reason), kind=classify(reason))
                outcomes.fail(indexes[int(position)], trouble)
        return trouble if len(refused) == len(indexes) else None

    async def _add(self, streams: list[str], arguments: list[int | bytes]) -> list[Any]:
        script = self._client.register_script(scripts.ADD)
        if not self._wait_replicas:
            refused: list[Any] = await script(keys=streams, args=arguments)
            return refused
        # WAIT asks about the connection that it runs on.
        pipe = self._client.pipeline(transaction=False)
        await script(keys=streams, args=arguments, client=pipe)
        pipe.execute_command("WAIT", self._wait_replicas, int(self._timeout * 500))
        refused, reached = await pipe.execute()
        if reached < self._wait_replicas:
            raise exceptions.TimeoutError("too few replicas have confirmed")
        return refused

    def _place(self, wire: WireMessage) -> str:
        text = wire.headers["message_id"] if wire.key is None else wire.key
        return self.stream(wire.topic, crc32(text.encode()) % self._known[wire.topic])

    async def _learn(self, topics: Iterable[str]) -> None:
        """Find out how many partitions the topics have; whoever comes first decides."""
        for topic in topics:
            if topic in self._known:
                continue
            pipe = self._client.pipeline(transaction=False)
            key = f"{self._base(topic)}:partitions"
            pipe.execute_command("SETNX", key, self._partitions)
            pipe.execute_command("GET", key)
            refused, number = await pipe.execute(raise_on_error=False)
            if isinstance(number, Exception):
                raise number
            if number is None:
                raise refused if isinstance(refused, Exception) else BusError("no partitions")
            self._known[topic] = int(number)

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> RedisSubscription:
        try:
            await self._learn([topic])
            count = self._known[topic]
            subscription = RedisSubscription(
                self._client,
                base=self._base(topic),
                topic=topic,
                group=group,
                streams=[self.stream(topic, n) for n in range(count)],
                prefetch=prefetch,
                claim_after=self._claim_after,
                keep=None if self._maxlen is None else -(-self._maxlen // count),
            )
            try:
                await subscription.start()
            except BaseException:
                await asyncio.shield(subscription.close())
                raise
        except _TROUBLE as error:
            raise BusError(f"cannot subscribe: {describe(error)}") from error
        return subscription


def pack(wire: WireMessage) -> bytes:
    """Return the fields of an entry as a MessagePack array: one argument instead of thirty."""
    parts: list[bytes] = []
    for name, value in wire.headers.items():
        parts += (_pack_name(name), _pack(value.encode()))
    if wire.key is not None and "ce_partitionkey" not in wire.headers:
        parts += (_pack_name("key"), _pack(wire.key.encode()))
    parts += (_pack_name("data"), _pack(wire.body))
    return b"".join((b"\xdc", len(parts).to_bytes(2), *parts))


def _pack(text: bytes) -> bytes:
    size = len(text)
    if size < 32:
        return _SHORT[size] + text
    if size < 65536:
        return b"\xda" + size.to_bytes(2) + text
    return b"\xdb" + size.to_bytes(4) + text


_SHORT = [bytes((0xA0 | size,)) for size in range(32)]


@lru_cache(maxsize=1000)
def _pack_name(name: str) -> bytes:
    return _pack(name.encode())
