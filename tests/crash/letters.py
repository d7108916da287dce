"""A consumer with messages that it cannot process, one that came before, and a batch."""

from __future__ import annotations

from sqlalchemy import select

from semel import (
    ConsumerInbox,
    EventConsumer,
    MessageEnvelope,
    RetryPolicy,
    SQLAlchemyUnitOfWork,
)
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from tests.crash.story import Story, bus_of, effect, until
from tests.crash.world import Books, World

_MESSAGES = {"bad": "Bad", "odd": "Odd", "good": "Good"}
_BATCH = ["x1", "x2", "y1"]


async def run(world: World) -> None:
    bus = bus_of(world)
    async with bus:
        # A member that takes what there is and leaves: for its successor all of it came before.
        early = await bus.subscribe("tasks", group="worker")
        await bus.publish_many(
            [
                MessageEnvelope(topic="tasks", event_type=kind, event_id=name, payload={})
                for name, kind in _MESSAGES.items()
            ]
        )
        await anext(aiter(early))
        await early.close()
        consumer = EventConsumer(
            "worker",
            "tasks",
            bus=bus,
            storage=world.storage,
            concurrency=1,
            # More than a sweep kills it in a row: a message that does so by itself is given up.
            retry=RetryPolicy(max_attempts=4, base_seconds=0.01),
        )

        @consumer.on("Good")
        async def good(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
            effect(uow, "good", event.event_id)

        @consumer.on("Bad")
        async def bad(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
            effect(uow, "bad", event.event_id)
            raise RuntimeError("cannot be done")

        async def is_quiet() -> bool:
            return not consumer.in_flight and not await consumer.lag()

        async with consumer:
            await until(is_quiet)
    await _batch(world)


async def _batch(world: World) -> None:
    messages = [
        MessageEnvelope(topic="batch", event_id=name, key=name[0], payload={"name": name})
        for name in _BATCH
    ]

    async def handle(payload: dict[str, str], uow: SQLAlchemyUnitOfWork) -> None:
        effect(uow, "batch", payload["name"])

    for _ in range(2):
        await ConsumerInbox(world.storage, "batches").process_batch(messages, handle)


async def check(books: Books) -> None:
    books.same("effects", ["good"], await books.effects("good"))
    books.same("undone effects", [], await books.effects("bad"))
    books.same("effects of a batch", _BATCH, await books.effects("batch"))
    inbox = await books.world.rows(
        select(InboxRecord.message_id, InboxRecord.status).where(
            InboxRecord.consumer_name == "worker"
        )
    )
    expected = {("bad", "DEAD"), ("odd", "PARKED"), ("good", "PROCESSED")}
    if expected != {tuple(row) for row in inbox}:
        books.add("left", f"the inbox has {inbox}")
    letters = await books.world.rows(
        select(OutboxRecord.event_metadata).where(OutboxRecord.topic == "tasks.dead")
    )
    books.same("dead letters", ["bad", "odd"], [row[0]["dead_letter_id"] for row in letters])


STORY = Story("letters", run, check, about=("consumer", "batch", "inbox"))
