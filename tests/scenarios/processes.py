"""Child processes that write or project events, and die where a test says.

The broker is a file outside of all processes: what was written there has been published.
`python -m tests.scenarios.processes '<json>'` is a child; the tests use `spawn`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semel.envelope import MessageEnvelope
from semel.errors import PublishError
from semel.projector import OutboxProjector
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.relaying import Counts, config, eventually

ROOT = Path(__file__).parents[2]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FileBus:
    """Publishes by appending a line to a file.

    `killer` is an id that nobody survives; `half` the place in a batch where the process dies;
    `stop_at` the call in the middle of which it stops until it is continued, and the last that
    rejects.
    """

    def __init__(
        self,
        path: Path,
        *,
        reject: float = 0.0,
        delay: float = 0.0,
        killer: str | None = None,
        half: int | None = None,
        stop_at: int | None = None,
    ) -> None:
        self.path = path
        self.reject = reject
        self.delay = delay
        self.killer = killer
        self.half = half
        self.stop_at = stop_at
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def ping(self) -> None:
        pass

    async def publish(self, message: MessageEnvelope) -> None:
        raise NotImplementedError

    async def subscribe(self, topic: str, *, group: str, prefetch: int = 100) -> Any:
        raise NotImplementedError

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        await asyncio.sleep(self.delay)
        if self.stop_at is not None:
            self.stop_at -= 1
        failed: dict[Any, PublishError] = {}
        results: list[PublishError | None] = []
        for number, message in enumerate(messages):
            if message.event_id == self.killer or number == self.half:
                die()
            if self.stop_at == 0 and number == len(messages) // 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            key = message.key or message.event_id
            if key not in failed and random.random() < self.reject:
                failed[key] = PublishError("busy")
            if key not in failed:
                line = {"id": message.event_id, "pid": os.getpid()}
                os.write(self._file, json.dumps(line).encode() + b"\n")
            results.append(failed.get(key))
        if self.stop_at == 0:
            self.reject = 0.0
        os.fsync(self._file)
        return results

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def ids(self) -> list[str]:
        return [line["id"] for line in self.lines()]


class Doomed:
    """Stands before a store or a bus and kills the process after the n-th call of a method."""

    def __init__(self, target: Any, method: str, nth: int, *, before: bool = False) -> None:
        self._target = target
        self._method = method
        self._left = nth
        self._before = before

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name != self._method:
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._before and self._left == 1:
                die()
            result = await value(*args, **kwargs)
            if result is None or result:  # an empty answer is no event
                self._left -= 1
            if self._left == 0:
                die()
            return result

        return call


def _freeze_after(target: Any, method: str) -> None:
    """Stop the process, until it is continued, after the first call of a method."""
    original = getattr(target, method)

    async def call(*args: Any, **kwargs: Any) -> Any:
        setattr(target, method, original)
        result = await original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(target, method, call)


class Child:
    """A running child process."""

    def __init__(self, process: subprocess.Popen[str], counts: Path) -> None:
        self.process = process
        self._counts = counts

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_stopped(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2]
        return state.startswith("T")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, *, seconds: float = 30.0) -> int:
        """Wait for its end and return its exit code."""
        await eventually(lambda: self.process.poll() is not None, seconds=seconds)
        return self.process.returncode

    async def stopped(self) -> Counter[str]:
        """Stop it with SIGTERM and return what its observer counted."""
        await eventually(self._counts.exists)  # before, the signal would simply kill it
        self.send(signal.SIGTERM)
        assert 0 == await self.ended()
        return Counter(json.loads(self._counts.read_text()))


@contextmanager
def spawn(url: str, broker: Path, **options: Any) -> Iterator[Child]:
    """Start a child; one that still runs at the end is killed.

    ``writes``: how many events to commit, over ``keys`` keys; ``projects``: whether to run a
    projector; ``kill``: method and number of the call that it does not survive; ``freeze``: method
    of the store after whose first call it stops;
    the others are arguments of `FileBus` under ``bus`` and settings under ``config``.
    """
    counts = broker.with_name(f"counts-{random.randrange(10**12)}.json")
    arguments = json.dumps({"url": url, "broker": str(broker), "counts": str(counts), **options})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.processes", arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        text=True,
    )
    try:
        yield Child(process, counts)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def _write(storage: SqlAlchemyStorage, number: int, keys: int, kill_at: int | None) -> None:
    for n in range(number):
        async with storage.unit_of_work() as uow:
            event_id = f"e{n % keys}-{n // keys:04d}"
            await uow.outbox.add("orders", {"n": n}, key=f"k{n % keys}", event_id=event_id)
            await uow.commit()
        if n + 1 == kill_at:
            die()


async def _main(options: dict[str, Any]) -> Counts:
    method, nth = options.get("kill") or (None, 0)
    bus: Any = FileBus(Path(options["broker"]), **options.get("bus") or {})
    counts = Counts()
    async with SqlAlchemyStorage(options["url"]) as storage:
        store: Any = storage.relay
        if options.get("freeze"):
            _freeze_after(store, options["freeze"])
        before = bool(method) and method.startswith("before ")
        name = (method or "").removeprefix("before ")
        if name == "publish_many":
            bus = Doomed(bus, name, nth, before=before)
        elif name not in ("", "commit"):
            store = Doomed(store, name, nth, before=before)
        tasks = []
        if options.get("projects", True):
            each = OutboxProjector(
                message_bus=bus,
                store=store,
                tenant_id=None,
                config=config(**options.get("config") or {}),
                observer=counts,
            )
            loop = asyncio.get_running_loop()
            tasks.append(asyncio.create_task(each.run_forever()))
            loop.add_signal_handler(
                signal.SIGTERM, lambda: tasks.append(asyncio.create_task(each.stop()))
            )
            await asyncio.to_thread(Path(options["counts"]).touch)
        if options.get("writes"):
            kill_at = nth if name == "commit" else None
            await _write(storage, options["writes"], options.get("keys", 5), kill_at)
        if tasks:
            await tasks[0]
            await asyncio.gather(*tasks)
    await bus.close()
    return counts


def main() -> None:
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    options = json.loads(sys.argv[1])
    counts = asyncio.run(_main(options))
    Path(options["counts"]).write_text(json.dumps(counts.totals))


if __name__ == "__main__":
    main()
