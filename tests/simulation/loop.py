"""An event loop with its own time: it never waits, and a seed decides who runs next."""

from __future__ import annotations

import asyncio
import heapq
from contextvars import ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: The node on whose behalf code runs; None for the network, the servers and the nemesis.
NODE: ContextVar[Process | None] = ContextVar("node", default=None)


# As after some time of running; and what a callback takes, so that no loop stops the time.
_START = 1000.0
_STEP = 1e-6


class StandstillError(Exception):
    """Everybody waits for something that nobody will do, or the loop runs and runs."""


class Process:
    """What runs and stops together: while it is not running its callbacks pile up."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.running = True
        #: Strong references: what a dead process left half done must not run its `finally`.
        self.tasks: list[asyncio.Task[Any]] = []
        self._backlog: list[asyncio.Handle] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(NODE.set, self)
        return self.loop.create_task(work, context=context)

    def freeze(self) -> None:
        self.running = False

    def thaw(self) -> None:
        self.running = True
        self.loop.ready.extend(self._backlog)
        self._backlog.clear()

    def put_off(self, handle: asyncio.Handle) -> None:
        self._backlog.append(handle)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs one callback at a time, drawn at random from those that are ready."""

    def __init__(self, chance: Random, *, shuffled: bool = True, most_steps: int = 400_000) -> None:
        super().__init__()
        self._chance = chance
        self._shuffled = shuffled
        self._most_steps = most_steps
        self._now = _START
        self.steps = 0
        self.ready: list[asyncio.Handle] = []
        self._ready = self.ready  # where call_soon() puts them
        self.set_task_factory(_remember)

    def time(self) -> float:
        return self._now

    @property
    def elapsed(self) -> float:
        """Seconds since the simulation began."""
        return self._now - _START

    def outside(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        """Call *function* after *seconds* whatever becomes of the node that asks for it."""
        context = copy_context()
        context.run(NODE.set, None)
        self.call_later(seconds, function, *args, context=context)

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and (timers[0]._cancelled or not self.ready or timers[0]._when <= self._now):
            handle = heapq.heappop(timers)
            handle._scheduled = False
            if not handle._cancelled:
                self._now = max(self._now, handle._when)
                self.ready.append(handle)
        if not self.ready:
            raise StandstillError("nothing is ready and nothing is planned")
        handle = self._draw()
        if handle._cancelled:
            return
        self.steps += 1
        self._now += _STEP
        if self.steps > self._most_steps:
            raise StandstillError(f"{self.steps} steps in {self.elapsed:.0f} simulated seconds")
        owner = handle._context.get(NODE)
        if owner is None or owner.running:
            handle._run()
        else:
            owner.put_off(handle)

    def _draw(self) -> asyncio.Handle:
        if not self._shuffled:
            return self.ready.pop(0)
        index = int(self._chance.random() * len(self.ready))
        self.ready[index], self.ready[-1] = self.ready[-1], self.ready[index]
        return self.ready.pop()

    # What BaseEventLoop asks of its subclasses.

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass


def _remember(
    loop: asyncio.AbstractEventLoop, work: Any, *, context: Any = None
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    owner = NODE.get() if context is None else context.get(NODE)
    if owner is not None:
        owner.tasks.append(task)
    return task
