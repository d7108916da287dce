"""A service as it runs: a writer, a projector, two consumers with inboxes, a call with a key."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import select

from semel import Hub, MessageEnvelope, OutboxStatus, SQLAlchemyUnitOfWork
from semel.idempotency import Idempotency
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from tests.crash.story import CONFIG, Story, bus_of, effect, keyed, rolled_back, until, write
from tests.crash.world import Books, World

_TRANSACTIONS = (("a1", "b1"), ("a2",))
_NAMES = [name for names in _TRANSACTIONS for name in names]
_UNSENT = (OutboxStatus.NEW, OutboxStatus.PUBLISHING, OutboxStatus.FAILED)


async def run(world: World) -> None:
    hub = Hub("shop", storage=world.storage, bus=bus_of(world), config=CONFIG)

    @hub.on("orders", "Placed")
    async def reserve(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        effect(uow, "reserve", event.event_id)
        await uow.outbox.add(
            "stock", {"name": event.event_id}, event_type="Reserved", key=event.order_key
        )

    @hub.on("stock", "Reserved")
    async def ship(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        effect(uow, "ship", event.payload["name"])

    async def pay(uow: SQLAlchemyUnitOfWork) -> dict[str, str]:
        effect(uow, "pay", "bill-1")
        return {"receipt": str(uuid4())}

    async with hub.running():
        for names in _TRANSACTIONS:
            await write(world, *names, topic="orders")
        await rolled_back(world, "orders")
        for _ in range(2):
            answer = await Idempotency(world.storage).run("bill-1", pay)
            world.note(key="bill-1", answer=answer)
        await until(lambda: _is_quiet(hub))


async def _is_quiet(hub: Hub) -> bool:
    """Tell whether all is sent and handled; `hub.drain()` would wake the projector each time."""
    before = await hub.storage.outbox.stats()
    if any(before.counts[status] for status in _UNSENT):
        return False
    for consumer in hub.consumers.values():
        if consumer.in_flight or await consumer.lag():
            return False
    # What was handled may have sent something new.
    return (await hub.storage.outbox.stats()).counts == before.counts


async def check(books: Books) -> None:
    orders = await books.published("orders")
    books.same("orders published", _NAMES, set(orders))
    books.in_order("orders published", keyed(orders))
    follow = await books.published("stock")
    if len(set(follow)) != len(_NAMES):
        books.add("lost" if len(set(follow)) < len(_NAMES) else "ghost", f"follow-ups: {follow}")
    for who in ("reserve", "ship"):
        found = await books.effects(who)
        books.same(f"effects of {who}", _NAMES, found)
        books.in_order(f"effects of {who}", keyed(found))
    books.same("payments", ["bill-1"], await books.effects("pay"))
    await books.answers()
    outbox = await books.world.rows(select(OutboxRecord.topic, OutboxRecord.status))
    sent = [(topic, "SENT") for topic in ("orders", "stock") for _ in _NAMES]
    if sorted(sent) != sorted(map(tuple, outbox)):
        books.add("left", f"the outbox has {outbox}")
    inbox = [row[0] for row in await books.world.rows(select(InboxRecord.status))]
    if inbox != ["PROCESSED"] * 2 * len(_NAMES):
        books.add("left", f"the inbox has {inbox}")
    await books.nothing_left()


STORY = Story("shop", run, check)
