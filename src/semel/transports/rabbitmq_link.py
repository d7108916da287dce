"""A connection to RabbitMQ that is made again when it is lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection as PikaConnection
from aiormq.abc import AbstractChannel, AbstractConnection

from semel.errors import BusError, ConfigurationError, describe
from semel.transports.rabbitmq_errors import TROUBLE, calling, failure

_FIRST_WAIT, _LAST_WAIT = 0.05, 2.0
_CLOSE_SECONDS = 5.0
CALL_SECONDS = 10.0


class Link:
    """One connection, by URL or lent by the application; a lent one stays open.

    After a failed attempt the next ones fail at once, for up to two seconds: a loop that publishes
    does not hammer a broker that is starting.
    """

    def __init__(
        self,
        broker: str | PikaConnection,
        *,
        name: str,
        heartbeat_seconds: int,
        connect_seconds: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._broker = broker
        self._options: dict[str, Any] = {"ssl_context": ssl_context}
        for option, value in (("name", name), ("heartbeat", str(heartbeat_seconds))):
            if isinstance(broker, str) and f"{option}=" not in broker:  # the URL has its own
                self._options[option] = value
        self._connect_seconds = connect_seconds
        self._connection: PikaConnection | None = None
        self._lock = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._wait = 0.0
        self._retry_at = 0.0
        self._error: BusError | None = None

    async def get(self) -> AbstractConnection:
        """Return the open connection; `BusError` if there is none and none can be made."""
        connection = self._connection or self._broker
        if not isinstance(connection, str) and (found := _underlay(connection)) is not None:
            return found
        async with self._lock:
            return await self._lent() if self._is_lent() else await self._made()

    def drop(self) -> None:
        """Give up a connection that does not answer; the next `get` makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            task = asyncio.create_task(_close(connection))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close what was made here."""
        self.drop()
        await asyncio.gather(*self._closing)

    def _is_lent(self) -> bool:
        return not isinstance(self._broker, str)

    async def _lent(self) -> AbstractConnection:
        assert not isinstance(self._broker, str)
        if isinstance(self._broker, aio_pika.RobustConnection) and not self._broker.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._connect_seconds):
                    await self._broker.ready()
        found = _underlay(self._broker)
        if found is None:
            raise BusError("the aio-pika connection that the bus was given is closed")
        return found

    async def _made(self) -> AbstractConnection:
        assert isinstance(self._broker, str)
        if self._connection is not None and (found := _underlay(self._connection)) is not None:
            return found
        now = asyncio.get_running_loop().time()
        if self._error is not None and now < self._retry_at:
            raise self._error
        self.drop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                connection = await calling(aio_pika.connect(self._broker, **self._options))
        except (ValueError, KeyError) as error:
            # Not repeated: it may quote the URL.
            raise ConfigurationError(
                "the URL of RabbitMQ is not understood: amqp://user:password@host:5672/vhost"
            ) from error
        except TROUBLE as error:
            self._wait = min(self._wait * 2 or _FIRST_WAIT, _LAST_WAIT)
            self._retry_at = asyncio.get_running_loop().time() + self._wait
            self._error = BusError(str(failure("no connection", describe(error))))
            raise self._error from error
        self._connection, self._error, self._wait = connection, None, 0.0
        found = _underlay(connection)
        if found is None:
            raise BusError(str(failure("no connection", "it was closed at once")))
        return found


def _underlay(connection: PikaConnection) -> AbstractConnection | None:
    transport = connection.transport
    if transport is None or transport.connection.is_closed or not transport.connection.is_opened:
        return None
    return transport.connection


async def _close(connection: PikaConnection) -> None:
    with suppress(*TROUBLE):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await calling(connection.close())


@asynccontextmanager
async def passing_channel(connection: AbstractConnection) -> AsyncIterator[AbstractChannel]:
    """Open a channel for one question: the broker closes it if the answer is no."""
    async with asyncio.timeout(CALL_SECONDS):
        channel = await calling(connection.channel(publisher_confirms=False))
        try:
            yield channel
        finally:
            with suppress(*TROUBLE):
                await calling(channel.close())
