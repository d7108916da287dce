"""Tell projectors that there is something to send, and members of a bus that something came.

Within the process by a call after the commit. Across processes, where the database can, by a
message on a channel: after the commit, on another connection, at most one in a few milliseconds.
Inside the business transaction it would cost the writers more than half of their speed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from semel.errors import describe
from semel.failpoints import failpoint
from semel.sqlalchemy.buffer import on_commit
from semel.sqlalchemy.connection import KeptConnection
from semel.sqlalchemy.dialects import database_of

CHANNEL = "semel_outbox"
_DEBOUNCE_SECONDS = 0.005
_RECONNECT_SECONDS = 5.0
_FAREWELL_SECONDS = 1.0
_logger = logging.getLogger("semel.wakeup")
_audience: WeakKeyDictionary[Engine, dict[str, list[Callable[[], None]]]] = WeakKeyDictionary()


class Signal:
    """Wakes subscribers on the same engine at once and, with *notify*, those elsewhere soon."""

    def __init__(self, engine: AsyncEngine, *, channel: str, notify: bool) -> None:
        self._engine = engine
        self._channel = channel
        self._database = database_of(engine.dialect)
        self._notifies = notify and self._database.can_notify
        self._audience = _audience.setdefault(engine.sync_engine, {}).setdefault(channel, [])
        self._wakers: list[Callable[[], None]] = []
        self._pending = False
        self._closed = False
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._connection = KeptConnection(engine)

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* at each signal; needs a running event loop to hear other processes."""
        self._closed = False
        self._wakers.append(wake)
        self._audience.append(wake)
        if self._notifies and (self._listener is None or self._listener.done()):
            self._listener = asyncio.get_running_loop().create_task(self._listen())

        def unsubscribe() -> None:
            if wake in self._wakers:
                self._wakers.remove(wake)
                self._audience.remove(wake)
            if not self._wakers and self._listener is not None:
                self._listener.cancel()
                self._ending.add(self._listener)
                self._listener.add_done_callback(self._ending.discard)
                self._listener = None

        return unsubscribe

    async def close(self) -> None:
        """Stop listening and sending; a later subscriber begins anew."""
        self._closed = True
        if self._sender is not None:
            # A process that commits and ends at once should still be heard.
            await asyncio.wait({self._sender}, timeout=_FAREWELL_SECONDS)
        tasks = [task for task in (self._sender, self._listener) if task is not None]
        self._sender = self._listener = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)
        await self._connection.close()

    def send(self) -> None:
        """Wake everybody; what others wait for must be committed."""
        failpoint("wakeup.before_send")
        for wake in tuple(self._audience):
            wake()
        if not self._notifies or self._closed:
            return  # the engine may be its owner's, and commit on: projectors elsewhere poll
        self._pending = True
        if self._sender is None or self._sender.done():
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # a sync writer: projectors elsewhere poll
            self._sender = loop.create_task(self._send())

    def _wake_all(self) -> None:
        for wake in tuple(self._wakers):
            wake()

    async def _send(self) -> None:
        try:
            while self._pending:
                self._pending = False
                async with self._connection.use() as connection:
                    await self._database.notify(connection, self._channel)
                await asyncio.sleep(_DEBOUNCE_SECONDS)
        except (SQLAlchemyError, OSError) as error:
            _logger.debug("wake-up not sent: %s", describe(error))

    async def _listen(self) -> None:
        while True:
            try:
                await self._database.listen(self._engine, self._channel, self._wake_all)
            except Exception as error:  # noqa: BLE001  each driver has its own; polling goes on
                _logger.info("not listening for wake-ups: %s", describe(error))
            await asyncio.sleep(_RECONNECT_SECONDS)


class WakeUp(Signal):
    """Commits of events, of this process and of others."""

    def __init__(self, engine: AsyncEngine, *, notify: bool) -> None:
        super().__init__(engine, channel=CHANNEL, notify=notify)
        on_commit(engine.sync_engine, self.send)
