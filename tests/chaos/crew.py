"""The child processes of a run, and the proxies on their links."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.servers.process import free_port
from sqlalchemy import make_url

from tests.chaos.plan import History, Plan, Post
from tests.chaos.servers import Ground, moved
from tests.proxy import KafkaProxy, Proxy

NAMES = ("api-1", "api-2", "relay-1", "relay-2", "consumer-1", "consumer-2")
_LINKS = {"api": ("db1",), "relay": ("db1", "db2", "bus"), "consumer": ("db2", "bus")}
_API_PORT = 26_800
RIGHT = (0.0, 1.0)


@dataclass
class Member:
    """A post, and the process that fills it at the moment."""

    name: str
    proxies: dict[str, Proxy] = field(default_factory=dict)
    port: int = 0
    generation: int = 0
    process: BaseProcess | None = None
    wanted: bool = False
    clock: tuple[float, float] = RIGHT  # offset and speed
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one fault at a time

    @property
    def role(self) -> str:
        return self.name.partition("-")[0]

    @property
    def proc(self) -> str:
        return f"{self.name}#{self.generation}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.is_alive() else None

    def send(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class Crew:
    """Starts processes, and starts them again when they end although they are wanted."""

    def __init__(self, plan: Plan, ground: Ground, history: History) -> None:
        self.members: dict[str, Member] = {}
        self.unasked = 0  # processes that ended by themselves
        self._plan = plan
        self._ground = ground
        self._history = history
        self._stack = AsyncExitStack()
        self._context: Any = get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.worker"])
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        for name in NAMES:
            self.start(await self.hire(name))
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        for member in self.members.values():
            member.wanted = False
            member.send(signal.SIGKILL)
            if member.process is not None:
                await asyncio.to_thread(member.process.join)
        await self._stack.__aexit__(kind, error, trace)

    async def hire(self, name: str) -> Member:
        """Make a post with proxies of its own."""
        member = self.members[name] = Member(name)
        for link in _LINKS[member.role]:
            proxy = self._proxy(link)
            if proxy is not None:
                member.proxies[link] = await self._stack.enter_async_context(proxy)
        if member.role == "api":
            member.port = free_port(_API_PORT + len(self.members))
            front = Proxy("127.0.0.1", member.port)
            member.proxies["http"] = await self._stack.enter_async_context(front)
        return member

    def _proxy(self, link: str) -> Proxy | None:
        if link == "bus" and self._ground.broker is not None:
            kind = KafkaProxy if self._plan.bus == "kafka" else Proxy
            return kind.before(self._ground.bus)
        if self._plan.database == "sqlite":
            return None
        url = make_url(self._ground.db1 if link == "bus" else getattr(self._ground, link))
        assert url.host is not None
        assert url.port is not None
        return Proxy(url.host, url.port)

    def _post(self, member: Member) -> Post:
        def database(link: str, url: str) -> str:
            proxy = member.proxies.get(link)
            return url if proxy is None else moved(url, proxy.port)

        ground = self._ground
        bus = member.proxies["bus"].url if "bus" in member.proxies else ground.bus
        if ground.broker is None:
            bus = f"database+{database('bus', ground.db1)}"
        return Post(
            name=member.name,
            proc=member.proc,
            role=member.role,
            folder=self._plan.folder,
            db1=database("db1", ground.db1),
            db2=database("db2", ground.db2),
            bus=bus,
            bus_options=ground.bus_options,
            port=member.port,
            seed=random.Random(f"{self._plan.seed} {member.proc}").randrange(2**31),
            clock_offset=member.clock[0],
            clock_speed=member.clock[1],
        )

    def start(self, member: Member) -> None:
        from tests.chaos.worker import work  # the fork server imports it once for all

        member.generation += 1
        member.wanted = True
        process = self._context.Process(target=work, args=(self._post(member),), daemon=True)
        process.start()
        member.process = process

    async def end(self, member: Member, number: signal.Signals, *, seconds: float = 20.0) -> bool:
        """End a process and wait for it; False if it had to be killed."""
        member.wanted = False
        member.send(number)
        member.send(signal.SIGCONT)
        process, polite = member.process, True
        if process is not None:
            await asyncio.to_thread(process.join, seconds)
            if process.is_alive():
                polite = False
                process.kill()
                await asyncio.to_thread(process.join)
        return polite

    async def _watch(self) -> None:
        for turn in count():
            await asyncio.sleep(0.2)
            if turn % 15 == 0:
                self.sample()
            for member in list(self.members.values()):
                if member.wanted and member.process is not None and not member.process.is_alive():
                    self.unasked += 1
                    value = {"exit": member.process.exitcode}
                    self._history.write("info", "ended", member.proc, value)
                    self.start(member)

    def sample(self) -> None:
        """Let every process write down what it uses."""
        for member in self.members.values():
            member.send(signal.SIGUSR1)

    async def heal(self) -> None:
        """Mend all links, and replace processes whose clock is wrong."""
        for member in self.members.values():
            for proxy in member.proxies.values():
                proxy.release()
                proxy.refuse = False
                proxy.latency = 0.0
            if member.wanted and member.clock != RIGHT:
                await self.end(member, signal.SIGTERM)
                member.clock = RIGHT
                self.start(member)


def log_tail(folder: Path, lines: int = 30) -> str:
    return "\n".join(
        f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
        for path in sorted(folder.glob("*.log"))
    )
