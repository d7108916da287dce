"""A projector in a process of its own, into a sink: `python -m benchmarks.worker '{...}'`.

It says "ready" when it owns its partitions, works until its input ends, and then tells when it
published which event, if it was asked to.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.relaying import Sink
from semel import MessageEnvelope, OutboxProjector, OutboxProjectorConfig, SqlAlchemyStorage
from semel.cli.work import collect_rarely
from semel.errors import PublishError

_ROOT = Path(__file__).parents[1]


class Notes(Sink):
    """Notes when each event came; all processes share CLOCK_MONOTONIC."""

    def __init__(self, **options: Any) -> None:
        super().__init__(sys.maxsize, **options)
        self.moments: dict[str, int] = {}

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        now = time.monotonic_ns()
        self.moments.update((message.event_id, now) for message in messages)
        return await super().publish_many(messages)


async def _run(url: str, options: dict[str, Any]) -> None:
    notes = options.pop("notes", False)
    delay = options.pop("delay", 0.0)
    sink = Notes(delay=delay) if notes else Sink(sys.maxsize, delay=delay)
    async with SqlAlchemyStorage(url) as storage:
        projector = OutboxProjector(
            message_bus=sink,
            tenant_id=None,
            store=storage.relay,
            config=OutboxProjectorConfig(**options),
        )
        task = asyncio.create_task(projector.run_forever())
        while not projector.is_ready:
            await asyncio.sleep(0.02)
        collect_rarely()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await projector.stop()
        await task
    sys.stdout.write(json.dumps(getattr(sink, "moments", {})) + "\n")


class Workers:
    """Processes that relay, seen from outside."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    def resident(self) -> float:
        """Resident memory of the first, in MiB."""
        status = Path(f"/proc/{self._processes[0].pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    async def finish(self) -> dict[str, int]:
        """End them; return when which event was published, in nanoseconds."""
        found: dict[str, int] = {}
        for process in self._processes:
            out, _ = await process.communicate(b"")
            found |= json.loads(out)
        return found


@asynccontextmanager
async def workers(url: str, number: int = 1, **options: Any) -> AsyncIterator[Workers]:
    """*number* projectors that own partitions; they end with this context at the latest."""
    async with AsyncExitStack() as stack:
        processes = []
        for _ in range(number):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.worker", json.dumps(options)),
                cwd=_ROOT,
                env={**os.environ, "BENCH_URL": url, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**26,
            )
            stack.push_async_callback(_end, process)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            line = await process.stdout.readline()
            assert line == b"ready\n", "a worker did not start"
        yield Workers(processes)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(_run(os.environ["BENCH_URL"], json.loads(sys.argv[1])))
