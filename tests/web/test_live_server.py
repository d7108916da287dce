"""Live events over real sockets: a client that does not read, beside many that do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from semel import Hub, SqlAlchemyStorage
from semel.asgi.live import LiveEvents
from tests.web.serving import everything, publish
from tests.web.streams import Event, parse

PATIENCE = 90.0
COUNT = 100
PAYLOAD = "x" * 8192


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """Serve *app* in this process, with little room for what is not read; returns the port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(PATIENCE):
        while not server.started:
            await asyncio.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    await task


class Connection:
    """A client on a socket of its own, with as little room for unread bytes as there can be."""

    async def open(self, port: int) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        self.reader, self.writer = await asyncio.open_connection(sock=raw, limit=4096)
        self.writer.write(b"GET /live HTTP/1.1\r\nHost: test\r\n\r\n")
        self.events: list[Event] = []
        self._text = ""
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        await self._until(lambda text: "id: " in text)

    async def read(self, last: Any) -> None:
        """Read until the event *last* is there."""
        await self._until(lambda _: bool(self.events) and self.events[-1].data.get("data") == last)

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition(self._text):
                size = int(await self.reader.readuntil(b"\r\n"), 16)  # chunked
                data = await self._exactly(size + 2)
                self._text += data[:-2].decode()
                done, _, rest = self._text.rpartition("\n\n")
                if done:
                    found = parse(done + "\n\n")
                    self.events += [event for event in found if event.data is not None]
                    self._text = rest if "id: " not in done else f"id: \n\n{rest}"

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self.reader.read(size - len(data))
        return data

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


async def test_one_that_does_not_read_slows_nobody(semel_storage: SqlAlchemyStorage) -> None:
    """It is behind alone; when it reads again it learns what it lost, and is back."""
    hub = Hub("shop", storage=semel_storage)
    options: dict[str, Any] = {"keep": 20, "replay": 20, "heartbeat_seconds": 0.2}
    live = LiveEvents(hub, ["orders"], authorize=everything, signals=False, **options)
    lifespan = hub.lifespan(projector=False, consumers=False)
    app = Starlette(routes=[Route("/live", live)], lifespan=lifespan)
    async with served(app) as port:
        quick, slow = [Connection() for _ in range(10)], Connection()
        for client in (*quick, slow):
            await client.open(port)
        for number in range(COUNT):
            await publish(hub, [number, PAYLOAD])
            await asyncio.gather(*(client.read([number, PAYLOAD]) for client in quick))
        assert 11 == live.clients
        await slow.read([COUNT - 1, PAYLOAD])
        for client in (*quick, slow):
            await client.close()
        live.stop()

    for client in quick:
        assert list(range(COUNT)) == [event.payload[0] for event in client.events]
    assert "lost" in [event.name for event in slow.events]
    seen = [event.payload[0] for event in slow.events if event.name == "message"]
    assert sorted(set(seen)) == seen
    assert len(seen) < COUNT
