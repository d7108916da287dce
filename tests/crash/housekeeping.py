"""Cleaning up in batches of one: only what is finished goes, after it was archived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import func, select, update

from semel import ConsumerInbox, OutboxProjector, SQLAlchemyUnitOfWork
from semel.idempotency import Idempotency
from semel.sqlalchemy.bus_tables import BusMessage
from semel.sqlalchemy.tables import IdempotencyRecord, InboxRecord, OutboxRecord
from tests.crash.story import CONFIG, Story, bus_of, effect, write
from tests.crash.world import LONG_AGO, Books, Ledger, World

_NAMES = ["a1", "a2", "b1"]
_AT_ONCE = timedelta(microseconds=1)


async def run(world: World) -> None:
    if not await world.did("cleaning"):
        await _use(world)
    bus = bus_of(world, retention=_AT_ONCE, group_expiry=_AT_ONCE)
    async with bus:
        await bus.cleanup()

    def archive(rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            world.note(archived=row.get("id") or row.get("message_id"))

    stores = world.storage
    await stores.outbox.cleanup(older_than=timedelta(0), batch_size=1, archive=archive)
    await stores.inbox.cleanup(older_than=timedelta(0), batch_size=1, archive=archive)
    await stores.idempotency.cleanup(batch_size=1)


async def _use(world: World) -> None:
    """Fill all tables; what is written here is finished when it is over."""
    await write(world, *_NAMES, topic="jobs")
    bus = bus_of(world)
    projector = OutboxProjector(
        message_bus=bus, store=world.storage.relay, tenant_id=None, config=CONFIG
    )
    async with bus, projector:
        await projector.run_once()
    inbox, calls = ConsumerInbox(world.storage, "worker"), Idempotency(world.storage)

    async def handle(payload: dict[str, str], uow: SQLAlchemyUnitOfWork) -> dict[str, str]:
        effect(uow, "worker", payload["name"])
        return payload

    for name in _NAMES:
        payload = {"name": name}
        await inbox.process_idempotent(name, "jobs", "Placed", payload, handle)
        await calls.run(name, uuid4, name="call")
    async with world.storage.unit_of_work() as uow:
        # Not finished, and so nobody's to remove.
        uow.session.add(Ledger(name="cleaning"))
        await uow.outbox.add("jobs", {}, key="z", event_id="waiting")
        await uow.session.execute(update(IdempotencyRecord).values(expires_at=LONG_AGO))
        await uow.commit()


async def check(books: Books) -> None:
    world = books.world
    books.same("effects", _NAMES, await books.effects("worker"))
    kept = [row[0] for row in await world.rows(select(OutboxRecord.id))]
    books.same("events kept", ["waiting"], kept)
    archived = {line["archived"] for line in world.noted() if "archived" in line}
    books.same("archived", _NAMES, archived)
    for table in (InboxRecord, IdempotencyRecord, BusMessage):
        count = (await world.rows(select(func.count()).select_from(table)))[0][0]
        if count:
            books.add("left", f"{count} rows of {table.__tablename__}")


STORY = Story("housekeeping", run, check, about=("operator", "cleanup"))
