"""Events to browsers as they happen: Server-Sent Events."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any, Self
from urllib.parse import parse_qs

from semel.asgi.feed import Feed
from semel.asgi.http import Receive, Scope, Send, problem, single
from semel.asgi.mirror import Mirror
from semel.asgi.reader import Reader
from semel.asgi.shutdown import on_exit_signal
from semel.asgi.stream import Stream, Viewer
from semel.envelope import check_name
from semel.errors import BusError, ConfigurationError, describe
from semel.hub import Hub
from semel.protocols import MessageLog
from semel.transports.database import DatabaseMessageBus

_POLL_SECONDS = 0.5
_FAREWELL_SECONDS = 5.0
_PREFIX = "live."
_logger = logging.getLogger("semel.live")


#: Tells what the caller, known by the ASGI scope, may see; None: nothing at all.
Authorize = Callable[[Scope], Viewer | Awaitable[Viewer | None] | None]


class LiveEvents:
    """An ASGI application that streams *topics* of *hub*'s bus to any number of clients.

    It runs while the hub runs. Each process reads the bus once, whatever the number of clients,
    and keeps the last *keep* events in memory. A client that is further behind, or comes back
    with `Last-Event-ID` (or `?last_event_id=`), is given what it missed from the log of the bus;
    if that is more than *replay* events, or gone, it gets an event `lost` instead and goes on
    with the oldest in memory. A bus that is no `MessageLog` is copied into the database and kept
    there for *history*.

    A stream ends after *max_seconds*; the client comes back by itself and is authorised again.
    """

    def __init__(
        self,
        hub: Hub,
        topics: Collection[str],
        *,
        authorize: Authorize,
        keep: int = 1000,
        replay: int = 1000,
        history: timedelta = timedelta(hours=1),
        max_clients: int = 1000,
        heartbeat_seconds: float = 15.0,
        max_seconds: float = 900.0,
        signals: bool = True,
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise ConfigurationError("name the topics to stream, such as topics=['orders']")
        if keep < 1 or replay < 0 or max_clients < 1:
            raise ConfigurationError("keep and max_clients must be at least 1, replay at least 0")
        if not heartbeat_seconds > 0 or not max_seconds > 0:
            raise ConfigurationError("heartbeat_seconds and max_seconds must be positive")
        self.topics = frozenset(check_name("topic", topic) for topic in topics)
        self._hub = hub
        self._authorize = authorize
        self._keep = keep
        self._replay = replay
        self._history = history
        self._max_clients = max_clients
        self._heartbeat = heartbeat_seconds
        self._max_seconds = max_seconds
        self._signals = signals
        self._feed: Feed | None = None
        self._open = False
        self._clients: set[asyncio.Task[Any]] = set()
        self._stack = AsyncExitStack()
        hub.attach(self)

    @property
    def clients(self) -> int:
        """How many streams are open."""
        return len(self._clients)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            log, names = await self._log(stack)
            self._feed = Feed(log, names, keep=self._keep, poll_seconds=_POLL_SECONDS)
            stack.push_async_callback(self._feed.close)
            if self._signals:
                stack.enter_context(on_exit_signal(self.stop))
            self._stack = stack.pop_all()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._clients:
            await asyncio.wait(self._clients, timeout=_FAREWELL_SECONDS)
        await self._stack.aclose()

    def stop(self) -> None:
        """End all streams after what they are sending; new clients are turned away."""
        self._open = False
        if self._feed is not None:
            self._feed.announce()

    async def _log(self, stack: AsyncExitStack) -> tuple[MessageLog, dict[str, str]]:
        bus = self._hub.bus
        if isinstance(bus, MessageLog):
            return bus, {topic: topic for topic in self.topics}
        names = {_PREFIX + topic: topic for topic in self.topics}
        copy = DatabaseMessageBus(
            self._hub.storage,
            retention=self._history,
            cleanup_topics=names,
            source=self._hub.name,
        )
        stack.push_async_callback(copy.close)
        await copy.start()
        mirror = Mirror(bus, copy, group=f"{self._hub.name}.live", max_age=self._history)
        stack.push_async_callback(mirror.close)
        mirror.start((topic, name) for name, topic in names.items())
        return copy, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client."""
        if scope["type"] != "http":
            raise RuntimeError("live events are streamed over HTTP only")
        if scope["method"] != "GET":
            await problem(send, 405, "Streams are read.", headers={"allow": "GET"})
            return
        viewer = self._authorize(scope)
        if inspect.isawaitable(viewer):
            viewer = await viewer
        if viewer is None:
            await problem(send, 403, "You may not see live events.")
            return
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=100)
        except ValueError:
            await problem(send, 400, "The query has too many fields.")
            return
        offered = self.topics if viewer.topics is None else self.topics & set(viewer.topics)
        wanted = frozenset(query.get("topic", offered))
        if not wanted or not wanted <= offered:
            await problem(send, 403, "You may not see events of these topics.")
            return
        if not self._open or self._feed is None or len(self._clients) >= self._max_clients:
            await problem(send, 503, "No stream can be opened now.", headers={"retry-after": "1"})
            return
        given = single(scope, b"last-event-id") or query.get("last_event_id", [""])[0]
        stream = Stream(viewer, wanted, Reader(self._feed, replay=self._replay), send)
        await self._serve(self._run(stream, self._feed, given), receive)

    async def _serve(self, work: Coroutine[Any, Any, None], receive: Receive) -> None:
        """Do *work* until it is done or the client has gone, or does not read any more."""
        task = asyncio.create_task(work, name="semel-live-client")
        gone = asyncio.create_task(_disconnected(receive))
        self._clients.add(task)
        try:
            await asyncio.wait(
                {task, gone},
                timeout=self._max_seconds + self._heartbeat,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)
            self._clients.discard(task)
        if not task.cancelled():
            with suppress(OSError):  # the client left while we wrote
                task.result()

    async def _run(self, stream: Stream, feed: Feed, given: str) -> None:
        until = asyncio.get_running_loop().time() + self._max_seconds
        feed.start()
        await stream.begin()
        while self._open and not feed.is_ready:
            await self._pause(feed.news, until)
            await stream.write(b":\n\n")
        try:
            await stream.place(given)
            while self._open and asyncio.get_running_loop().time() < until:
                news = feed.news
                if not await stream.forward() and not await self._pause(news, until):
                    await stream.beat()
        except BusError as error:
            # The client knows its place, and comes back with it.
            _logger.warning("a client could not be caught up: %s", describe(error))
        await stream.end()

    async def _pause(self, news: asyncio.Event, until: float) -> bool:
        """Wait for news; False if there was none for the time of a heartbeat."""
        beat = asyncio.get_running_loop().time() + self._heartbeat
        try:
            async with asyncio.timeout_at(min(beat, until)):
                return await news.wait()
        except TimeoutError:
            return False


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
