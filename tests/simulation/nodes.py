"""Processes of the service: they crash, freeze, and lose their ways to the servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.simulation.driver import busy
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from random import Random

    from semel import OutboxProjector
    from tests.simulation.broker import Member
    from tests.simulation.driver import Connection
    from tests.simulation.world import World


class Link:
    """The way from a node to a server and back."""

    def __init__(self, world: World, server: str) -> None:
        self._world = world
        self._server = server
        self._chance: Random = world.chance
        self.is_cut = False

    @property
    def is_up(self) -> bool:
        return not self.is_cut and self._server not in self._world.down

    def strikes(self, fault: str) -> bool:
        """Tell whether *fault* happens now."""
        rate = self._world.plan.rate(fault) if self._world.hostile else 0.0
        return rate > 0 and self._chance.random() < rate

    async def travel(self, *, back: bool = False) -> None:
        """Take a while; raise `ConnectionError` if the other end was not reached."""
        if self._world.over:
            raise ConnectionError("the simulation is over")
        slow = self.strikes(f"{self._server}_slow")
        await asyncio.sleep(self._chance.uniform(0.3, 3.0) if slow else self._chance.random() / 99)
        if not self.is_up:
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            raise ConnectionError(f"the {self._server} cannot be reached")
        if not back and self.strikes(f"{self._server}_cut"):
            raise ConnectionError(f"the connection to the {self._server} broke")

    def maybe_lose_answer(self) -> None:
        """Raise although it was done."""
        if self.strikes("database_answer_lost"):
            raise ConnectionError("the answer was lost")

    def maybe_refuse(self) -> None:
        """Raise what asks for another try of the transaction."""
        if self.strikes("database_busy"):
            raise busy()


class Node(Process):
    """One process of the service, from its start to its end."""

    def __init__(self, world: World, name: str, role: str) -> None:
        super().__init__(world.loop, name)
        self.world = world
        self.role = role
        self.database = world.database
        self.link = Link(world, "database")
        self.wire = Link(world, "broker")
        self.skew = world.chance.uniform(-300, 300)
        self.connections: list[Connection] = []
        self.members: list[Member] = []
        self.projector: OutboxProjector | None = None
        self.storage: Any = None
        self.dead = False

    @property
    def is_reachable(self) -> bool:
        """Whether the broker hears of it."""
        return self.running and self.wire.is_up

    def trace(self, kind: str, detail: str) -> None:
        self.world.trace(self.name, kind, detail)

    def crash(self) -> None:
        """Stop at this instruction; the servers find out."""
        self.dead = True
        self.freeze()
        self.end_connections()

    def end_connections(self, *, idle_only: bool = False) -> None:
        """The server closes what it does not hear of, or transactions that are left alone."""
        for connection in list(self.connections):
            if connection.in_transaction or not idle_only:
                connection.kill()
