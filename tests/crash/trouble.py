"""A broker that rejects, projectors that come and go, an operator who repairs: step by step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select

from semel import MessageEnvelope, OutboxProjector
from semel.errors import PublishError
from semel.operations import OutboxFilter, Verb
from semel.sqlalchemy.tables import OutboxRecord
from semel.testing import FakeClock
from semel.transports.database import DatabaseMessageBus
from tests.crash.story import CONFIG, Story, bus_of, keyed, write
from tests.crash.world import Books, Ledger, World

_NAMES = ["a1", "a2", "b1", "b2", "c1", "d1"]
_SOON = datetime(2001, 1, 1, tzinfo=UTC)
_TICK_SECONDS = 3.0  # longer than the time between two heartbeats


class Moody:
    """A bus that refuses b1 at first, and a1 until somebody has repaired what was wrong."""

    def __init__(self, world: World, bus: DatabaseMessageBus) -> None:
        self._world = world
        self._bus = bus
        self._refused = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._bus, name)

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        errors: dict[str, PublishError] = {}
        if not await self._world.did("repair"):
            errors["a"] = PublishError("bad", kind="permanent")
        if not self._refused:
            errors["b"] = PublishError("busy")
        passed = [message for message in messages if message.key not in errors]
        self._refused = self._refused or any(message.key == "b" for message in messages)
        results = iter(await self._bus.publish_many(passed))
        return [errors[m.key] if m.key in errors else next(results) for m in messages]


async def run(world: World) -> None:
    clock, bus = FakeClock(), bus_of(world)
    await bus.start()

    def projector() -> OutboxProjector:
        return OutboxProjector(
            message_bus=Moody(world, bus),  # type: ignore[arg-type]
            store=world.storage.relay,
            tenant_id=None,
            config=CONFIG,
            clock=clock,
        )

    await write(world, "a1", "b1", topic="jobs")
    await write(world, "c1", topic="jobs", available_at=_SOON)
    # One that claims and is never heard of again: its successor distrusts what it left.
    await projector().run_once()
    await world.let_leases_expire()
    first = projector()
    await write(world, "a2", "b2", topic="jobs")
    for _ in range(50):
        await first.run_once()
        clock.advance(_TICK_SECONDS)
        if await _settled(world, "a1") and await _settled(world, "b2"):
            break
    await _repair(world)
    second = projector()
    await write(world, "d1", topic="jobs")
    for _ in range(50):
        # Both own a half from the second round on, which the first one gave up.
        await first.run_once()
        await second.run_once()
        clock.advance(_TICK_SECONDS)
        if second.is_ready and not await _unsent(world):
            break
    await second.stop()
    await first.stop()
    await bus.close()


async def _repair(world: World) -> None:
    """Mend the broker and requeue what is DEAD, twice: an operator may repeat it."""
    async with world.storage.unit_of_work() as uow:
        if await uow.session.get(Ledger, "repair") is None:
            uow.session.add(Ledger(name="repair"))
        await uow.commit()
    outbox = world.storage.outbox
    async for _ in outbox.bulk(Verb.REQUEUE, OutboxFilter(topic="jobs"), batch_size=1):
        pass
    await outbox.requeue(["a1"])


async def _settled(world: World, name: str) -> bool:
    found = await world.rows(select(OutboxRecord.status).where(OutboxRecord.id == name))
    return bool(found) and found[0][0] in ("SENT", "DEAD")


async def _unsent(world: World) -> bool:
    return bool(await world.rows(select(OutboxRecord.id).where(OutboxRecord.status != "SENT")))


async def check(books: Books) -> None:
    published = await books.published("jobs")
    books.same("jobs published", _NAMES, set(published))
    books.in_order("jobs published", keyed(published))
    await books.nothing_left()


STORY = Story("trouble", run, check, about=("relay", "operator"))
