"""Faults, in an order that the seed decides; each kind comes as often as the others."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.chaos.crew import Crew, Member
from tests.chaos.database_faults import DATABASE_FAULTS
from tests.chaos.plan import History, Plan
from tests.chaos.process_faults import LINK_FAULTS, PROCESS_FAULTS
from tests.chaos.servers import Ground
from tests.chaos.storages import Storages

Fault = Callable[["Nemesis", random.Random], Awaitable[str | None]]


class Nemesis:
    """Does harm, writes down which, and mends everything at the end."""

    def __init__(
        self, plan: Plan, ground: Ground, crew: Crew, storages: Storages, history: History
    ) -> None:
        self.plan = plan
        self.ground = ground
        self.crew = crew
        self.storages = storages
        self.faults: list[dict[str, Any]] = []
        self.operated = 0  # events that an operator sent again
        self.servers = asyncio.Lock()  # one fault of a server at a time
        self._history = history
        self._bag: list[str] = []
        self._again = False  # every kind has been in the bag once

    @property
    def kinds(self) -> dict[str, Fault]:
        """What can be done to this database and this bus."""
        found = {**PROCESS_FAULTS, **DATABASE_FAULTS}
        if self.plan.database != "sqlite" or self.ground.broker is not None:
            found |= LINK_FAULTS
        absent = {
            "disk full": self.plan.database != "sqlite",
            "connections terminated": self.plan.database == "sqlite",
            "database killed": self.ground.database_server is None,
            "database read-only": self.ground.database_server is None
            or self.plan.database != "postgres",
            "broker killed": self.ground.broker is None,
        }
        return {kind: fault for kind, fault in found.items() if not absent.get(kind)}

    async def rage(self, seconds: float) -> None:
        """Two at a time, until the time is over and every kind has come at least once."""
        until = time.monotonic() + seconds
        chance = random.Random(self.plan.seed)
        await asyncio.gather(*(self._hand(chance, until) for _ in range(2)))

    async def _hand(self, chance: random.Random, until: float) -> None:
        while time.monotonic() < until or (self._bag and not self._again):
            await asyncio.sleep(0.2 + chance.random() * 1.5)
            await self._strike(random.Random(chance.randrange(2**31)), self._next(chance))

    def _next(self, chance: random.Random) -> str:
        if not self._bag:
            self._again = bool(self.faults)
            self._bag = sorted(self.kinds)
            chance.shuffle(self._bag)
        return self._bag.pop()

    async def _strike(self, chance: random.Random, kind: str) -> None:
        began = time.monotonic()
        self._history.write("invoke", "fault", kind)
        try:
            target = await self.kinds[kind](self, chance)
        except Exception as error:  # noqa: BLE001  a fault may be hit by another one
            target = None
            self._history.write("fail", "fault", kind, repr(error)[:500])
        if target is None:
            return
        line = {"t": began, "kind": kind, "target": target, "duration": time.monotonic() - began}
        self.faults.append(line)
        self._history.write("ok", "fault", kind, line)

    def pick(self, chance: random.Random, *roles: str) -> Member | None:
        """Choose a process that no other fault is at."""
        free = [
            member
            for member in self.crew.members.values()
            if (not roles or member.role in roles) and member.wanted and not member.lock.locked()
        ]
        return chance.choice(free) if free else None
