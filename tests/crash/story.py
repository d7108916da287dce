"""What all stories share: how they are told, and the steps that several of them need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from semel import OutboxProjectorConfig
from semel.protocols import UnitOfWork
from semel.transports.database import DatabaseMessageBus
from tests.crash.world import LEASE_SECONDS, Books, Effect, Ledger, World


@dataclass(frozen=True, slots=True)
class Story:
    """*run* goes on from whatever a predecessor left; *check* looks at the books afterwards.

    *about* names the groups of failpoints that it was made for; it may pass others, too.
    """

    name: str
    run: Callable[[World], Awaitable[None]]
    check: Callable[[Books], Awaitable[None]]
    about: tuple[str, ...] = ()

    def is_about(self, failpoint: str) -> bool:
        return not self.about or failpoint.partition(".")[0] in self.about


CONFIG = OutboxProjectorConfig(
    lease_seconds=LEASE_SECONDS,
    retry_base_seconds=0.01,
    sleep_busy=0.5,
    sleep_idle=2.0,
)


def bus_of(world: World, **options: Any) -> DatabaseMessageBus:
    settings: dict[str, Any] = {
        "partitions": 2,
        "lease_seconds": LEASE_SECONDS,
        "poll_seconds": 2.0,
        "commit_seconds": 0.0,
        "retention": None,
    }
    return DatabaseMessageBus(world.storage, **settings | options)


async def write(world: World, *names: str, topic: str, **options: Any) -> None:
    """Commit events with these names, once: `a2` is the second of key a."""
    async with world.storage.unit_of_work() as uow:
        for name in names:
            if await uow.session.get(Ledger, name) is None:
                uow.session.add(Ledger(name=name))
                given = {"event_type": "Placed", "key": name[0], "event_id": name} | options
                await uow.outbox.add(topic, {"name": name}, **given)
        await uow.commit()


async def rolled_back(world: World, topic: str) -> None:
    """An event of a transaction that is not committed: nobody may ever see it."""
    async with world.storage.unit_of_work() as uow:
        uow.session.add(Ledger(name="ghost"))
        await uow.outbox.add(topic, {"name": "ghost"}, key="a", event_id="ghost")
        await uow.session.flush()


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    """Return once *done*; the life as a whole has a deadline."""
    while not await done():
        await asyncio.sleep(0.01)


def effect(uow: UnitOfWork, who: str, what: str) -> None:
    uow.session.add(Effect(who=who, what=what))


def keyed(names: list[str]) -> list[tuple[str, int]]:
    """Take names apart."""
    return [(name[0], int(name[1:])) for name in names]
