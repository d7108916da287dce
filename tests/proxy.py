"""A TCP proxy in front of a real server, to cut, stall and slow down its connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

_PIECE = 64 * 1024


class Proxy:
    """Forwards to `host:port` and disturbs on demand.

    `cut()` resets every connection; `cut_after(n)` does so once n more bytes have gone to the
    server, in the middle of a message if need be. `blackhole` keeps connections open but silent;
    `hold("up")` and `hold("down")` do so to or from the server only, until `release()`.
    `refuse` cuts new connections at once. `latency` delays each piece, in seconds.

        async with Proxy.before("amqp://user:pw@127.0.0.1:5672") as proxy:
            bus = Bus(proxy.url)
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.url = ""
        self.refuse = False
        self.latency = 0.0
        self.accepted = 0  # connections so far
        self.sent = 0  # bytes to the server so far
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self.release()
        self._limit: int | None = None
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def before(cls, url: str) -> Proxy:
        """Make a proxy whose `url` is *url* with another port."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        proxy = cls(parts.hostname, parts.port)
        proxy.url = url
        return proxy

    @property
    def port(self) -> int:
        """Where clients connect, on 127.0.0.1."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def blackhole(self) -> bool:
        """While true nothing passes, and nothing is closed."""
        return not any(way.is_set() for way in self._open.values())

    @blackhole.setter
    def blackhole(self, on: bool) -> None:
        for direction in self._open:
            self.hold(direction)
        if not on:
            self.release()

    def hold(self, direction: str) -> None:
        """Let nothing pass to the server ("up"), or from it ("down")."""
        self._open[direction].clear()

    def release(self) -> None:
        """Let everything pass that was held, in both directions."""
        for way in self._open.values():
            way.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        if self.url:
            parts = urlsplit(self.url)
            login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
            self.url = parts._replace(netloc=f"{login}127.0.0.1:{self.port}").geturl()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.blackhole = False
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections."""
        self._limit = None
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_after(self, count: int) -> None:
        """Reset all connections once *count* more bytes have gone to the server."""
        self._limit = self.sent + count

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        self._spawn(self._forward(reader, server_writer, writer, upstream=True))
        self._spawn(self._forward(server_reader, writer, server_writer, upstream=False))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(
        self,
        reader: Any,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        *,
        upstream: bool,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                await self._open["up" if upstream else "down"].wait()
                if self.latency:
                    await asyncio.sleep(self.latency)
                if upstream and self._limit is not None and self.sent + len(data) >= self._limit:
                    writer.write(data[: self._limit - self.sent])
                    await writer.drain()
                    await asyncio.sleep(0.05)  # the server gets its part before the reset
                    self.cut()
                    break
                if upstream:
                    self.sent += len(data)
                writer.write(data)
                await writer.drain()
        for each in (writer, back):
            self._writers.discard(each)
            each.transport.abort()


class KafkaProxy(Proxy):
    """Also replaces the address that the broker tells its clients to connect to."""

    async def _forward(
        self,
        reader: Any,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        *,
        upstream: bool,
    ) -> None:
        host, port = self.target
        told, ours = (host.encode() + struct.pack("!i", p) for p in (port, self.port))

        class Rewriting:
            async def read(self, size: int) -> bytes:
                data: bytes = await reader.read(size)
                return data.replace(told, ours)

        await super()._forward(reader if upstream else Rewriting(), writer, back, upstream=upstream)
