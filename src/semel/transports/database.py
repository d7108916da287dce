"""The service's own database as the broker: several processes, no other server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Literal
from uuid import uuid4
from zlib import crc32

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, PublishError, PublishErrorKind, describe
from semel.failpoints import failpoint
from semel.protocols import LogEntry, Subscription
from semel.sqlalchemy.bus import NewMessage, SqlAlchemyBusStore
from semel.sqlalchemy.bus_groups import Member
from semel.sqlalchemy.rows import slot_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.base import BaseMessageBus, Outcomes
from semel.transports.database_log import to_wire
from semel.transports.database_subscription import DatabaseSubscription, Pace
from semel.wire import Mode, WireMessage

Cause = Literal["encoding", "too_large", "refused", "busy", "schema", "denied", "commit"]

#: What a publisher is told, by cause; `docs/transports/database.md` explains each.
ERRORS: Mapping[Cause, PublishErrorKind] = MappingProxyType(
    {
        "encoding": "permanent",
        "too_large": "permanent",
        "refused": "permanent",
        "busy": "destination",
        "schema": "destination",
        "denied": "destination",
        "commit": "unknown",
    }
)
_MAX_PARTITIONS = 256
_ATTEMPTS = 3
_BATCH_BYTES = 8 * 1024 * 1024
_CLEANUP_SECONDS = 60.0
_CLEANUP_ROWS = 1000
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_logger = logging.getLogger("semel.bus")


class DatabaseMessageBus(BaseMessageBus):
    """Topics, partitions and consumer groups in tables of *database*.

    *database* is a `SqlAlchemyStorage`, an `AsyncEngine` or a URL; only a storage that was made
    here is closed here. With `database://` it is the given *storage*.

    A new topic gets *partitions* logs; an existing one keeps its number. A partition is read by
    one member of a group at a time, under a lease of *lease_seconds*. A new group starts at the
    oldest message that is kept or, with *from_beginning* false, at the end.

    Messages are deleted when they are older than *retention* (None: never) and every group has
    consumed them; a group that was not seen for *group_expiry* is not waited for. Only those of
    *cleanup_topics* are, where the database has other buses that keep theirs longer.
    """

    system = "database"

    def __init__(
        self,
        database: SqlAlchemyStorage | AsyncEngine | URL | str,
        *,
        storage: SqlAlchemyStorage | None = None,
        partitions: int = 16,
        lease_seconds: float = 10.0,
        poll_seconds: float = 0.5,
        commit_seconds: float = 0.1,
        retention: timedelta | None = timedelta(days=7),
        group_expiry: timedelta = timedelta(days=14),
        cleanup_topics: Collection[str] | None = None,
        from_beginning: bool = True,
        max_message_bytes: int = 4 * 1024 * 1024,
        notify: bool = True,
        source: str = "semel",
        mode: Mode = "binary",
        modes: Mapping[str, Mode] | None = None,
    ) -> None:
        super().__init__(source=source, mode=mode, modes=modes)
        if not 1 <= partitions <= _MAX_PARTITIONS:
            raise ConfigurationError(f"partitions must be between 1 and {_MAX_PARTITIONS}")
        if lease_seconds < 1:
            raise ConfigurationError("lease_seconds must be at least 1")
        if poll_seconds <= 0 or commit_seconds < 0 or max_message_bytes < 1:
            raise ConfigurationError(
                "poll_seconds and max_message_bytes must be positive, commit_seconds not negative"
            )
        if retention is not None and group_expiry < retention:
            raise ConfigurationError("group_expiry must not be shorter than retention")
        self.storage, self._owns_storage = _storage(database, storage)
        self._partitions = partitions
        self._lease_seconds = lease_seconds
        self._pace = Pace(poll_seconds, commit_seconds)
        self.retention = retention
        self._group_expiry = group_expiry
        self._cleanup_topics = cleanup_topics
        self._from_beginning = from_beginning
        self._limit = max_message_bytes
        self._notify = notify
        self._store: SqlAlchemyBusStore | None = None
        self._topics: dict[str, Sequence[int]] = {}
        self._janitor: asyncio.Task[None] | None = None

    async def ping(self) -> None:
        """Raise `BusError` if the database does not answer or lacks the tables."""
        await self._ready()
        await self._check(self._opened)

    async def cleanup(self) -> int:
        """Delete what is old and consumed, as the bus does by itself once a minute."""
        await self._ready()
        if self.retention is None:
            return 0
        return await self._opened.cleanup(
            retention=self.retention,
            group_expiry=self._group_expiry,
            batch_size=_CLEANUP_ROWS,
            topics=self._cleanup_topics,
        )

    async def bounds(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Return each log's first position that is kept, and the one behind its last."""
        await self._ready()
        self.check_topic(topic)
        try:
            await self._logs(topic)
            found = await self._opened.bounds(topic)
        except Exception as error:
            raise BusError(_explain(self._opened.cause(error), error)) from error
        return {identity: (first, end) for identity, first, end in found}

    async def read(
        self, topic: str, positions: Mapping[int, int], *, limit: int
    ) -> Sequence[LogEntry]:
        """Return messages of these logs from these positions on, at most *limit* of each log."""
        await self._ready()
        if not positions:
            return []
        try:
            rows = await self._opened.fetch(
                [(identity, start, limit) for identity, start in positions.items()]
            )
        except Exception as error:
            raise BusError(_explain(self._opened.cause(error), error)) from error
        return [LogEntry(row.partition_id, row.position, to_wire(topic, row)) for row in rows]

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* when messages may have come, until the function returned is called."""
        return self._opened.signal.subscribe(wake)

    @property
    def _opened(self) -> SqlAlchemyBusStore:
        assert self._store is not None
        return self._store

    async def _open(self) -> None:
        store = SqlAlchemyBusStore(self.storage.engine, notify=self._notify)
        await self._check(store)
        self._store = store
        self._topics.clear()
        if self.retention is not None:
            self._janitor = asyncio.create_task(self._clean(), name="semel-bus-cleanup")

    async def _close(self) -> None:
        if self._janitor is not None:
            self._janitor.cancel()
            await asyncio.wait({self._janitor})
            self._janitor = None
        await self._opened.close()
        if self._owns_storage:
            await self.storage.close()

    async def _check(self, store: SqlAlchemyBusStore) -> None:
        try:
            await store.ping()
        except Exception as error:
            raise BusError(_explain(store.cause(error), error)) from error

    async def _clean(self) -> None:
        while True:
            # At random: processes that started together shall not clean together.
            await asyncio.sleep(_CLEANUP_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311  no secret
            try:
                await self.cleanup()
            except Exception as error:  # noqa: BLE001  the next round may work
                _logger.warning("old messages were not removed: %s", describe(error))

    async def _send(self, batch: Sequence[tuple[int, WireMessage]], outcomes: Outcomes) -> None:
        sized: list[tuple[int, WireMessage, str]] = []
        for index, wire in batch:
            if not outcomes.admits(index):
                continue
            headers = _to_json(wire.headers)
            size = len(wire.body) + len(headers)
            if size > self._limit:
                text = f"the message has {size} bytes, the limit of this bus is {self._limit}"
                outcomes.fail(index, PublishError(text, kind=ERRORS["too_large"]))
            else:
                sized.append((index, wire, headers))
        for topic in {wire.topic for _, wire, _ in sized} - self._topics.keys():
            failure = await self._attempt(partial(self._logs, topic))
            if failure is not None:
                _fail([index for index, _, _ in sized], outcomes, failure)
                return
        rows = [
            (index, self._row(wire, headers, outcomes.messages[index]))
            for index, wire, headers in sized
        ]
        chunks = _chunks(rows)
        for number, chunk in enumerate(chunks):
            trouble = await self._append(chunk, outcomes)
            if trouble is not None:
                rest = [index for later in chunks[number + 1 :] for index, _ in later]
                _fail(rest, outcomes, trouble)
                return

    async def _append(
        self, chunk: Sequence[tuple[int, NewMessage]], outcomes: Outcomes
    ) -> PublishError | None:
        """Store a chunk; return the trouble that makes it useless to go on."""
        admitted = [(index, row) for index, row in chunk if outcomes.admits(index)]
        rows = [row for _, row in admitted]
        failure = await self._attempt(lambda: self._opened.append(rows)) if rows else None
        if failure is None:
            return None
        if failure.kind != "permanent":
            _fail([index for index, _ in admitted], outcomes, failure)
            return failure
        if len(admitted) == 1:
            outcomes.fail(admitted[0][0], failure)
            return None
        # One of them is bad: find out which.
        for number, single in enumerate(admitted):
            trouble = await self._append([single], outcomes)
            if trouble is not None:
                _fail([index for index, _ in admitted[number + 1 :]], outcomes, trouble)
                return trouble
        return None

    async def _attempt(self, work: Callable[[], Awaitable[object]]) -> PublishError | None:
        """Do *work*, again if the database was busy; return what is wrong in the end."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await work()
            except Exception as error:  # noqa: BLE001  classified
                if attempt == _ATTEMPTS or self._opened.cause(error) != "busy":
                    return self._error(error)
                await asyncio.sleep(random.uniform(0, 0.02 * 2**attempt))  # noqa: S311  no secret
            else:
                break
        return None

    def _error(self, error: BaseException) -> PublishError:
        cause = self._opened.cause(error)
        if cause == "schema":
            self._topics.clear()
        return PublishError(_explain(cause, error), kind=ERRORS[cause])

    async def _logs(self, topic: str) -> Sequence[int]:
        known = self._topics.get(topic)
        if known is None:
            known = await self._opened.partitions(topic, count=self._partitions)
            self._topics[topic] = known
        return known

    def _row(self, wire: WireMessage, headers: str, message: MessageEnvelope) -> NewMessage:
        logs = self._topics[wire.topic]
        if wire.key is None:
            number = crc32(message.event_id.encode()) % len(logs)
        else:
            number = slot_of(message.tenant_id, wire.key, len(logs))
        return NewMessage(logs[number], wire.key, headers, wire.body)

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> Subscription:
        store = self._opened
        name = f"{socket.gethostname()[:100]}:{os.getpid()}:{uuid4().hex[:12]}"
        member = Member(name, topic, group, self._lease_seconds)
        subscription = DatabaseSubscription(
            store, member, prefetch=prefetch, pace=self._pace, on_change=self._shuffle
        )
        try:
            await self._logs(topic)
            await store.join(member, from_beginning=self._from_beginning)
            failpoint("bus.after_join")
            await subscription.start()
        except Exception as error:
            raise BusError(_explain(store.cause(error), error)) from error
        return subscription

    def _shuffle(self, changed: DatabaseSubscription) -> None:
        """Let the other members in this process notice at once that one came or gave way."""
        for other in list(self._subscriptions):
            if (
                isinstance(other, DatabaseSubscription)
                and other is not changed
                and other.member[1:3] == changed.member[1:3]
            ):
                other.shuffle()


def _storage(
    database: SqlAlchemyStorage | AsyncEngine | URL | str, storage: SqlAlchemyStorage | None
) -> tuple[SqlAlchemyStorage, bool]:
    if isinstance(database, SqlAlchemyStorage):
        return database, False
    if isinstance(database, str):
        scheme, _, rest = database.partition("://")
        if scheme == "database" and not rest and storage is not None:
            return storage, False
        if scheme == "database" or not scheme:
            raise ConfigurationError(
                "database:// means the database of a storage: give it as storage=..., or name "
                "the database as in database+postgresql+asyncpg://user:password@host/name"
            )
        database = database.removeprefix("database+")
    return SqlAlchemyStorage(database), True


def _chunks(
    rows: Sequence[tuple[int, NewMessage]],
) -> list[list[tuple[int, NewMessage]]]:
    """Split only what is too large for one statement."""
    chunks: list[list[tuple[int, NewMessage]]] = []
    size = _BATCH_BYTES + 1
    for index, row in rows:
        length = len(row.body) + len(row.headers)
        if size + length > _BATCH_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append((index, row))
        size += length
    return chunks


def _fail(indexes: Sequence[int], outcomes: Outcomes, error: PublishError) -> None:
    for index in indexes:
        outcomes.fail(index, error)


def _explain(cause: Cause, error: BaseException) -> str:
    if cause == "schema":
        return (
            "the tables of the bus are missing or damaged: run `semel db create`, or "
            "`await storage.initialize()` in tests"
        )
    return describe(error)
