"""Servers that belong to one test: nobody else minds when they die."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError
from semel.protocols import MessageBus
from semel.testing.contracts.harness import message
from semel.testing.reader import Reader
from semel.wire import decode

ROOT = Path(__file__).parents[2]


class OwnServer:
    """A process on a free port of 127.0.0.1; `kill` and `start` keep its port and its data.

    `{port}` in *options* is that port.
    """

    def __init__(self, program: str, folder: Path, *options: str) -> None:
        found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
        if found is None:
            pytest.skip(f"{program} is not installed")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        place = {"nats-server": ("-js", "-a", "127.0.0.1", "-sd", str(folder), "-p")}
        redis = ("--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--port")
        more = (option.replace("{port}", str(self.port)) for option in options)
        self._command: Sequence[str] = (found, *place.get(program, redis), str(self.port), *more)
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def start(self) -> None:
        """Return once the port is open."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: ASYNC220
        async with asyncio.timeout(20):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    assert self._process.poll() is None, self._log.read_text()
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    await writer.wait_closed()
                    return

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class OwnConsumer:
    """Another process that takes one message, says so, and never acks it; killed at the end."""

    def __init__(self, make_bus: str, topic: str) -> None:
        self._code = f"""
import asyncio
async def main():
    {make_bus}
    async for delivery in await bus.subscribe({topic!r}, group="group", prefetch=1):
        print("taken", delivery.wire.headers["message_id"], flush=True)
asyncio.run(main())
"""

    async def __aenter__(self) -> str:
        """Return the id of the message that the process holds."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", self._code),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT / "src")},
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            line = await self._process.stdout.readline()
        return line.decode().split()[1]

    async def __aexit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.communicate()


async def publish_until_confirmed(
    bus: MessageBus, messages: Sequence[MessageEnvelope], *, batch: int = 50
) -> list[str]:
    """Publish as the relay does: what is not confirmed goes again, in order. Returns the kinds."""
    waiting, seen = list(messages), []
    async with asyncio.timeout(60):
        while waiting:
            head = waiting[:batch]
            try:
                results = await bus.publish_many(head)
            except BusError as error:
                seen.append(getattr(error, "kind", "destination"))
                await asyncio.sleep(0.1)
                continue
            failed = [m for m, error in zip(head, results, strict=True) if error is not None]
            seen += [error.kind for error in results if error is not None]
            waiting = failed + waiting[batch:]
            if failed:
                await asyncio.sleep(0.1)
    return seen


def keyed(count: int, keys: int = 10) -> list[MessageEnvelope]:
    """Messages for `orders`, numbered, that take turns with their keys."""
    return [message("orders", key=f"k{n % keys}", payload=n, event_id=f"{n}") for n in range(count)]


async def read_all(reader: Reader, count: int) -> list[MessageEnvelope]:
    """Take until *count* different messages came; what comes twice is acked too."""
    seen: dict[str, MessageEnvelope] = {}
    while len(seen) < count:
        (delivery,) = await reader.take()
        received = decode(delivery.wire)
        seen.setdefault(received.event_id, received)
        with suppress(BusError):  # it comes again
            await delivery.ack()
    return list(seen.values())
