"""What one client gets to read, as Server-Sent Events."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from semel.asgi.http import Send
from semel.asgi.reader import Reader, format_cursor
from semel.envelope import DEFAULT_TENANT, MessageEnvelope

_RETRY_MS = 1000
_CHUNK = 32 * 1024
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx would keep events back
)
_logger = logging.getLogger("semel.live")


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """What one client may see.

    Events of *tenant_id* (None: of every tenant), of *topics* (None: of all that are offered),
    that *allow* accepts. An event's id, type, topic and time leave the process; its payload does
    not, unless *show* returns it, or what of it this client may have.
    """

    tenant_id: str | None = DEFAULT_TENANT
    topics: Collection[str] | None = None
    allow: Callable[[MessageEnvelope], bool] | None = None
    show: Callable[[MessageEnvelope], Any] | None = None

    def sees(self, message: MessageEnvelope) -> bool:
        """Tell whether the client may know of *message*."""
        return (
            (self.tenant_id is None or message.tenant_id == self.tenant_id)
            and (self.topics is None or message.topic in self.topics)
            and (self.allow is None or self.allow(message) is True)
        )


class Stream:
    """One open answer."""

    def __init__(self, viewer: Viewer, topics: Collection[str], reader: Reader, send: Send) -> None:
        self.reader = reader
        self._viewer = viewer
        self._topics = topics
        self._send = send

    async def begin(self) -> None:
        """Send the head, and when to come back if we are cut off."""
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await self.write(b"retry: %d\n\n" % _RETRY_MS)

    async def place(self, given: str) -> None:
        """Take the place *given*, else the end."""
        if not given:
            self.reader.begin()
        elif not self.reader.resume(given):
            await self.write(self._frame(None))
        await self.beat()

    async def forward(self) -> bool:
        """Send what is new, several events at once; tell whether there was something to do."""
        chunk, count = b"", 0
        async with aclosing(self.reader.take()) as messages:
            async for message in messages:
                count += 1
                chunk += self._frame(message)
                if len(chunk) > _CHUNK:
                    break
        await self.write(chunk)
        return count > 0

    async def beat(self) -> None:
        """Show that we live, and tell the place: events that were not for this client count."""
        await self.write(b"id: %b\n\n" % self._place())

    async def write(self, data: bytes) -> None:
        """Send *data*; waits while the client does not read."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Close the answer."""
        await self._send({"type": "http.response.body", "body": b""})

    def _place(self) -> bytes:
        return format_cursor(self.reader.cursor).encode()

    def _frame(self, message: MessageEnvelope | None) -> bytes:
        if message is None:
            return b"event: lost\nid: %b\ndata: {}\n\n" % self._place()
        try:
            if message.topic not in self._topics or not self._viewer.sees(message):
                return b""
            document = {
                "id": message.event_id,
                "type": message.event_type,
                "topic": message.topic,
                "time": message.occurred_at.isoformat(),
            }
            if self._viewer.show is not None:
                document["data"] = self._viewer.show(message)
            data = json.dumps(document, separators=(",", ":")).encode()
        except Exception as error:  # noqa: BLE001  the application's hooks; in doubt it is not shown
            _logger.warning("an event was not shown: %s", type(error).__name__)
            return b""
        return b"id: %b\ndata: %b\n\n" % (self._place(), data)
