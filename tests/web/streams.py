"""A client of an event stream, without a network between: it reads when the test lets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Event:
    """One block of the stream."""

    name: str
    id: str | None
    data: Any

    @property
    def payload(self) -> Any:
        return self.data["data"]


def parse(text: str) -> list[Event]:
    """Return the complete blocks of *text*, those without data included."""
    events = []
    for block in text.split("\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            if name and not line.startswith(":"):
                fields[name] = value
        data = json.loads(fields["data"]) if "data" in fields else None
        events.append(Event(fields.get("event", "message"), fields.get("id"), data))
    return events


@dataclass
class Client:
    """Use it with `async with`: inside, the request is under way."""

    app: Any
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    path: str = "/live"

    def __post_init__(self) -> None:
        self.status: int | None = None
        self.answer_headers: dict[str, str] = {}
        self.text = ""
        self.ended = False
        self._changed = asyncio.Condition()
        self._gate = asyncio.Event()
        self._gate.set()
        self._left = asyncio.Event()

    async def __aenter__(self) -> Self:
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": urlencode(self.query, doseq=True).encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in self.headers.items()],
        }
        self.task = asyncio.create_task(self.app(scope, self._receive, self._send))
        await self.until(lambda: self.status is not None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(self.task, return_exceptions=True)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answer_headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            await self._gate.wait()
            self.text += message.get("body", b"").decode()
            self.ended = not message.get("more_body", False)
        async with self._changed:
            self._changed.notify_all()

    def rest(self) -> None:
        """Stop reading: whatever is sent from now on waits."""
        self._gate.clear()

    def read(self) -> None:
        """Go on reading."""
        self._gate.set()

    @property
    def events(self) -> list[Event]:
        """What has arrived, `lost` included."""
        return [event for event in parse(self.text) if event.data is not None]

    @property
    def payloads(self) -> list[Any]:
        return [event.payload for event in self.events if event.name == "message"]

    @property
    def losses(self) -> int:
        return sum(event.name == "lost" for event in self.events)

    @property
    def place(self) -> str:
        """The last id, as a browser would send it back."""
        return next(event.id for event in reversed(parse(self.text)) if event.id is not None)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            while not condition():
                if self.status is not None and self.task.done():
                    await self.task
                    assert condition(), f"the stream ended before: {self.text[-500:]}"
                    return
                await self._changed.wait()

    async def ready(self) -> Self:
        """Wait until the stream has its place: what is published from now on arrives."""
        await self.until(lambda: any(event.id for event in parse(self.text)))
        return self
