"""What handlers may look like, and what they receive."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from sqlalchemy import insert

from semel.commands import CommandBus
from semel.consumer import EventConsumer
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError
from semel.operations import InboxFilter
from semel.protocols import UnitOfWork
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import InboxStatus
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.consuming import (
    consumer_of,
    drained,
    effects,
    job,
    letters,
    names,
    sqlite_only,
)


@dataclass(frozen=True)
class Assigned:
    job_id: int
    to: str = "nobody"


class AssignedModel(pydantic.BaseModel):
    job_id: int


class AssignedStruct(msgspec.Struct):
    job_id: int


@sqlite_only
@pytest.mark.parametrize("kind", [Assigned, AssignedModel, AssignedStruct])
async def test_handlers_receive_what_they_ask_for(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, kind: Any
) -> None:
    """A type is made of the payload; a payload that does not fit is dead at once."""
    consumer = consumer_of(bus, storage)
    seen: list[Any] = []

    async def handler(event, uow):
        seen.append(event)

    handler.__annotations__["event"] = kind
    consumer.on("job.assigned")(handler)
    await bus.publish_many(
        [
            job("a", payload={"job_id": 7, "more": 1}),
            job("b", payload={"job_id": "secret"}),
            job("c", payload=["no object"]),
        ]
    )
    async with consumer:
        await drained(consumer)
    assert [7] == [event.job_id for event in seen]
    assert isinstance(seen[0], kind)
    dead = await storage.inbox.search(InboxFilter(status=InboxStatus.DEAD))
    assert {("id-b", 1), ("id-c", 1)} == {(r.message_id, r.attempts) for r in dead}
    assert all(str(r.reason).startswith("invalid:") for r in dead)
    assert not any("secret" in str(r.reason) for r in dead)


@sqlite_only
async def test_a_dict_handler_and_an_emitted_event(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """`dict` receives the payload; emitted events carry correlation and causation."""
    consumer = consumer_of(bus, storage)

    @consumer.on("job.assigned")
    async def handler(payload: dict[str, Any], uow: UnitOfWork) -> None:
        await uow.outbox.add("invoices", payload)

    await bus.publish(job(metadata={"correlation_id": "c-1"}))
    async with consumer:
        await drained(consumer)
    [row] = await letters(storage)
    assert ({"name": "a"}, "c-1", "id-a") == (
        row.payload,
        row.event_metadata["correlation_id"],
        row.event_metadata["causation_id"],
    )


@sqlite_only
async def test_a_subclass_as_in_the_seed(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """name, topic and group_id are attributes; handle() turns events into commands."""
    commands = CommandBus()

    @dataclass(frozen=True)
    class AssignJob:
        name: str

    @commands.handler(AssignJob)
    async def assign(command: AssignJob, uow: UnitOfWork) -> None:
        await uow.session.execute(insert(effects).values(name=command.name))

    class JobEventConsumer(EventConsumer):
        name = "JobEventConsumer"
        topic = "jobs"
        group_id = "job-service-job-group"

        async def handle(self, event: MessageEnvelope, uow: UnitOfWork) -> None:
            match event.event_type:
                case "job.assigned":
                    await commands.execute(AssignJob(event.payload["name"]), uow)
                case _:
                    logging.getLogger(__name__).warning("unknown: %s", event.event_type)

    consumer = JobEventConsumer(bus=bus, storage=storage)
    assert ("JobEventConsumer", "jobs", "job-service-job-group") == (
        consumer.name,
        consumer.topic,
        consumer.group_id,
    )
    await bus.publish_many([job("a"), job("b", event_type="job.moved")])
    async with consumer:
        await drained(consumer)
    assert ["a"] == await names(storage)
    assert [] == await letters(storage)


@sqlite_only
async def test_bad_registrations_are_refused(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """What cannot work is said when it is registered, not when the first message comes."""
    consumer = consumer_of(bus, storage)
    with pytest.raises(ConfigurationError, match="has no handler"):
        await consumer.start()
    on = consumer.on("job.assigned")

    async def number(event: int) -> None: ...

    async def lost(event: "Nowhere") -> None: ...  # noqa: F821, UP037

    async def greedy(event: MessageEnvelope, uow: UnitOfWork, more: str) -> None: ...

    for handler, text in (
        (number, "asks for int, which semel cannot make of a message"),
        (lost, "Nowhere.* cannot be resolved"),
        (greedy, "needs 'more'"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            on(handler)
    with pytest.raises(ConfigurationError, match="at least 1"):
        consumer_of(bus, storage, concurrency=0)
