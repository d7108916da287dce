"""The bank as a process of its own: `python -m tests.web.server URL PORT`."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn

from semel import Hub, IdempotencyPolicy, SqlAlchemyStorage
from tests.web.bank import create_app

ROOT = Path(__file__).parents[2]
LEASE = timedelta(seconds=1)


class Server:
    """A process that can be killed and started again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.port = _free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.web.server", self._url, str(self.port)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    async def ready(self, *, seconds: float = 60.0) -> None:
        """Return once it accepts connections."""
        async with asyncio.timeout(seconds):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                assert self._process is not None
                assert self._process.poll() is None, "the server has ended"
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL: no handler of the process sees it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """Serve *app* from this process, and give its port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(30):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def main() -> None:
    url, port = sys.argv[1:]
    hub = Hub("bank", storage=SqlAlchemyStorage(url))
    app = create_app(hub, policy=IdempotencyPolicy(lease=LEASE))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="critical")


if __name__ == "__main__":
    main()
