"""One seed: a service with its processes, its database, its broker, and what goes wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import sqlite3
import tempfile
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from sqlalchemy import create_engine

from semel.clock import SystemClock
from semel.sqlalchemy import buffer, schema
from semel.sqlalchemy.creation import create_schema
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.simulation import workload
from tests.simulation.broker import Broker
from tests.simulation.driver import EPOCH, engine_for, open_database
from tests.simulation.invariants import violations
from tests.simulation.loop import NODE, SimulatedLoop, StandstillError
from tests.simulation.nemesis import Nemesis, requeue_dead
from tests.simulation.nodes import Node
from tests.simulation.plan import draw

#: After the last fault everything must be done within so many simulated seconds.
LIVENESS_SECONDS = 90.0
_TAIL = 60
_HEARTBEAT = ("UPDATE outbox_instance", "UPDATE outbox_lease")
# Fewer than in life, so that keys meet in them; and reading them all takes most of the time.
_PARTITIONS = 4

_BOOKS = """
CREATE TABLE sim_ledger (position INTEGER PRIMARY KEY AUTOINCREMENT, event_id, topic, key);
CREATE TABLE sim_effect (position INTEGER PRIMARY KEY AUTOINCREMENT, event_id, key);
CREATE TABLE sim_execution (position INTEGER PRIMARY KEY AUTOINCREMENT, request);
CREATE TABLE sim_audit (position INTEGER PRIMARY KEY, event_id, before, after,
  attempts_before, attempts, writer, owner);
CREATE TRIGGER sim_changed AFTER UPDATE OF status, retry_count ON outbox
WHEN OLD.status <> NEW.status OR OLD.retry_count <> NEW.retry_count BEGIN
  INSERT INTO sim_audit (event_id, before, after, attempts_before, attempts, writer, owner)
  VALUES (NEW.id, OLD.status, NEW.status, OLD.retry_count, NEW.retry_count, sim_writer(),
    (SELECT owner FROM outbox_lease WHERE partition_no = NEW.partition_no));
END;
CREATE TRIGGER sim_deleted AFTER DELETE ON outbox BEGIN
  INSERT INTO sim_audit (event_id, before, after, attempts_before, attempts, writer)
  VALUES (OLD.id, OLD.status, 'GONE', OLD.retry_count, OLD.retry_count, sim_writer());
END;
"""


@dataclass(frozen=True, slots=True)
class Run:
    """How a seed went."""

    seed: int
    violations: list[str]
    digest: str
    tail: list[str]
    steps: int
    seconds: float
    counts: Counter[str]


class World:
    """Everything that a seed decides; nothing outlives it."""

    def __init__(self, seed: int, folder: Path, *, requests: int | None = None) -> None:
        self.chance = Random(seed)
        self.plan = draw(self.chance, requests=requests)
        self.loop = SimulatedLoop(Random(self.chance.random()), shuffled=self.plan.shuffled)
        self.database = str(folder / "simulated.db")
        shutil.copyfile(_template(), self.database)
        self._reader = open_database(self.database, self.loop.time)
        self._reader.create_function("sim_writer", 0, lambda: "nobody")
        self.hostile = True
        self.over = False
        self.down: set[str] = set()
        #: What happens to the next node whose batch arrives, that begins or has committed.
        self.traps: dict[str, tuple[str | None, Callable[[Node], None]]] = {}
        self.nodes: dict[str, Node] = {}
        self._past: list[Node] = []
        self._kept: list[asyncio.Task[Any]] = []
        self.broker = Broker(self)
        self.requests: list[workload.Request] = []
        self.stubborn: dict[str, bool] = {}
        self.handler_failures: Counter[str] = Counter()
        self.instances: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._names: dict[str, str] = {}
        self._digest = sha256()
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self.loop.set_exception_handler(self._unexpected)

    # What happened.

    def trace(self, who: str, kind: str, detail: str) -> None:
        line = f"{self.loop.elapsed:9.4f} {who:<10} {kind:<9} {detail}"
        self._digest.update(line.encode())
        if detail not in _HEARTBEAT:
            self._tail.append(line)
        self.counts[kind] += 1

    def name_of(self, event_id: str) -> str:
        """Return a short name, the same at each replay."""
        return self._names.setdefault(event_id, f"#{len(self._names) + 1}")

    def read(self, sql: str) -> list[Any]:
        """Look at the database as it is, without a network."""
        return self._reader.execute(sql).fetchall()

    def _unexpected(self, _loop: object, context: dict[str, Any]) -> None:
        if not self.over:
            self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def spring(self, name: str, node: Node) -> None:
        """Let the trap snap, if there is one for *node*."""
        whom, act = self.traps.get(name, ("", None))
        if act is not None and whom in (None, node.name):
            del self.traps[name]
            act(node)

    # Who takes part.

    def start(self, name: str, role: str) -> None:
        """Start a process, in the place of one that is no more."""
        old = self.nodes.get(name)
        if old is not None:
            if not old.dead:
                return
            self._past.append(old)
        node = self.nodes[name] = Node(self, name, role)
        if role == "relay":
            node.spawn(workload.run_relay(node))
        elif role == "consumer":
            node.spawn(workload.run_consumer(node))

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something happen that no node does."""
        context = copy_context()
        context.run(NODE.set, None)
        self._kept.append(self.loop.create_task(work, context=context))

    async def call_operator(self, work: Callable[[Node], Awaitable[None]]) -> None:
        """Run a command of an operator in a process of its own."""
        node = Node(self, "operator", "operator")
        self._past.append(node)
        node.storage = SqlAlchemyStorage(engine_for(node))
        task = node.spawn(work(node))
        await asyncio.wait({task}, timeout=10.0)
        if task.done() and task.exception() is not None:
            self.trace("operator", "error", type(task.exception()).__name__)

    # The story.

    async def _story(self) -> None:
        plan = self.plan
        for role, number in (("relay", plan.relays), ("consumer", plan.consumers)):
            for index in range(number):
                self.start(f"{role}-{index}", role)
        for index in range(plan.apis):
            self.start(f"api-{index}", "api")
        await asyncio.gather(workload.clients(self), Nemesis(self).run())
        await asyncio.sleep(self.chance.uniform(0.0, 5.0))
        await self._calm_down()

    async def _calm_down(self) -> None:
        """End all trouble; then everything must come to its end."""
        self.hostile = False
        self.traps.clear()
        self.down.clear()
        self.broker.troubled_topics.clear()
        self.broker.refused.clear()
        for node in list(self.nodes.values()):
            node.link.is_cut = node.wire.is_cut = False
            if node.dead:
                self.start(node.name, node.role)
            elif not node.running:
                node.thaw()
        self.broker.wake()
        self.trace("nemesis", "calm", "")
        end = self.loop.time() + LIVENESS_SECONDS
        while (rest := self._unfinished()) and self.loop.time() < end:
            if self.read("SELECT 1 FROM outbox WHERE status = 'DEAD' LIMIT 1"):
                await self.call_operator(requeue_dead)
            await asyncio.sleep(0.5)
        if rest:
            self.errors.append(f"liveness: {rest} after {LIVENESS_SECONDS:.0f} seconds of calm")

    def _unfinished(self) -> str:
        unsent = self.read("SELECT count(*) FROM outbox WHERE lane IS NOT NULL")[0][0]
        waiting = sum(not request.done for request in self.requests)
        # Before a group has had its first member the broker knows of nothing that it waits for.
        absent = sum(node.role == "consumer" and not node.members for node in self.nodes.values())
        if unsent or waiting or absent or self.broker.backlog:
            return (
                f"{unsent} events unsent, {self.broker.backlog} messages not acknowledged, "
                f"{absent} consumers without a place, {waiting} clients without an answer"
            )
        return ""

    def run(self) -> list[str]:
        """Return what was violated."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._story())
        except StandstillError as error:
            self.errors.append(f"liveness: {error}")
        return self.errors + violations(self)

    def end(self) -> None:
        """Let everything that is left over end, without a way to any server."""
        self.over = True
        self.loop.steps = 0
        nodes = [*self.nodes.values(), *self._past]
        for node in nodes:
            node.end_connections()
            node.thaw()
        tasks = [task for node in nodes for task in node.tasks] + self._kept
        try:
            self.loop.run_until_complete(_end(tasks))
        except StandstillError:
            pass  # it was told above, if it is true of a living service
        finally:
            self._reader.close()
            buffer._wakers.clear()
            asyncio.set_event_loop(None)
            self.loop.close()

    def result(self, seed: int, found: list[str]) -> Run:
        return Run(
            seed=seed,
            violations=found,
            digest=self._digest.hexdigest(),
            tail=list(self._tail),
            steps=self.loop.steps,
            seconds=self.loop.elapsed,
            counts=self.counts,
        )


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for _ in range(20):
        left = [task for task in tasks if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=60.0)


def simulate(seed: int, *, requests: int | None = None) -> Run:
    """Run one seed; the same seed gives the same run, to the last callback."""
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder, _determined(seed) as begin:
        world = World(seed, Path(folder), requests=requests)
        with begin(world):
            found = world.run()
            result = world.result(seed, found)
            world.end()
    return result


@contextmanager
def _determined(seed: int) -> Iterator[Callable[[World], Any]]:
    """Take away everything that another run would see otherwise: clocks, chance, collections."""
    schema._checked.clear()
    random.seed(seed)
    noise = Random(seed)

    @contextmanager
    def begin(world: World) -> Iterator[None]:
        def now(_clock: object) -> Any:
            node = NODE.get()
            skew = node.skew if isinstance(node, Node) else 0.0
            return EPOCH + timedelta(seconds=world.loop.time() + skew)

        with (
            patch.object(SystemClock, "now", now),
            patch.object(SystemClock, "monotonic", lambda _clock: world.loop.time()),
            patch("semel.sqlalchemy.idempotency.monotonic", world.loop.time),
            patch("semel.envelope.time.time_ns", lambda: int(world.loop.time() * 1e9)),
        ):
            yield

    gc.disable()
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(os, "urandom", noise.randbytes))
            for name in (
                "tenure._",
                "sqlalchemy.leases.",
                "sqlalchemy.buffer.",
                "sqlalchemy.schema.",
            ):
                stack.enter_context(patch(f"semel.{name}PARTITIONS", _PARTITIONS))
            yield begin
    finally:
        gc.enable()


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


_made: dict[str, str] = {}


def _template() -> str:
    """Return a file with semel's tables and ours, made once."""
    if "path" not in _made:
        folder = tempfile.TemporaryDirectory(prefix="semel-simulation-")
        path = Path(folder.name) / "template.db"
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            create_schema(connection)
        engine.dispose()
        with sqlite3.connect(path) as raw:
            raw.executescript(_BOOKS)
            raw.execute("PRAGMA journal_mode = WAL")
        raw.close()
        _made["path"], _KEEP[folder.name] = str(path), folder
    return _made["path"]


_KEEP: dict[str, tempfile.TemporaryDirectory[str]] = {}
