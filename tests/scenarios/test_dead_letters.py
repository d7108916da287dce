"""What cannot be processed is given up in one transaction, and never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.dead_letters import revive
from semel.envelope import MessageEnvelope
from semel.errors import TransactionMisuseError
from semel.inbox import ConsumerInbox, Outcome
from semel.protocols import UnitOfWork
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import InboxStatus
from semel.transports.memory import InMemoryMessageBus
from semel.wire import WireMessage
from tests.scenarios.consuming import (
    consumer_of,
    drained,
    job,
    letters,
    names,
    perform,
    record,
    sqlite_only,
    write,
)


async def test_a_poison_message_ends_in_the_dead_letters(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """After the last attempt one transaction settles the inbox row and adds the letter."""
    consumer = consumer_of(bus, storage)
    attempts: list[str] = []

    @consumer.on("job.assigned")
    async def fail(message: MessageEnvelope, uow: UnitOfWork) -> None:
        attempts.append(message.event_id)
        await write(message, uow)
        raise ValueError("password=hunter2 is wrong")

    sent = job(metadata={"correlation_id": "c-1", "colour": "red"}, key="k")
    await bus.publish(sent)
    async with consumer:
        await drained(consumer)
    assert ["id-a"] * 3 == attempts
    assert [] == await names(storage)
    found = await record(storage)
    assert (InboxStatus.DEAD, 3) == (found.status, found.attempts)
    assert "failed: ValueError: password=*** is wrong" == found.reason
    [letter] = await letters(storage)
    assert ("jobs.dead", "job.assigned", "k") == (
        letter.topic,
        letter.event_type,
        letter.order_key,
    )
    assert "id-a" != letter.id
    assert sent.body == letter.envelope().body
    assert {
        "dead_letter_id": "id-a",
        "dead_letter_topic": "jobs",
        "dead_letter_consumer": "billing",
        "dead_letter_reason": "failed",
        "dead_letter_error": "ValueError: password=*** is wrong",
        "dead_letter_attempts": "3",
        "dead_letter_content_type": "application/json",
        "correlation_id": "c-1",
        "colour": "red",
    }.items() <= letter.event_metadata.items()
    assert "hunter2" not in caplog.text


async def test_a_producer_may_consume_its_own_poison(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """The letter's own id does not collide with the outbox row of the original."""
    async with storage.unit_of_work() as uow:
        await uow.outbox.put(job())
        await uow.commit()
    consumer = consumer_of(bus, storage)

    @consumer.on("job.assigned")
    async def fail(_message: MessageEnvelope) -> None:
        raise ValueError("no")

    await bus.publish(job())
    async with consumer:
        await drained(consumer)
    assert ["jobs", "jobs.dead"] == [row.topic for row in await letters(storage)]


async def test_a_dead_message_can_be_replayed(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """After the bug is mended the same message passes, once."""
    broken = True
    consumer = consumer_of(bus, storage)

    @consumer.on("job.assigned")
    async def handler(message: MessageEnvelope, uow: UnitOfWork) -> None:
        if broken:
            raise ValueError("no")
        await write(message, uow)

    async with consumer:
        await bus.publish(job())
        await drained(consumer)
        assert InboxStatus.DEAD == (await record(storage)).status
        broken = False
        [letter] = await letters(storage)
        original = revive(letter.envelope())
        assert ("jobs", "id-a", "job.assigned", job().body) == (
            original.topic,
            original.event_id,
            original.event_type,
            original.body,
        )
        await bus.publish_many([original, original])
        await drained(consumer)
    assert ["a"] == await names(storage)
    assert InboxStatus.PROCESSED == (await record(storage)).status


async def test_a_message_has_one_letter_until_it_is_revived(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """One that comes again, not acknowledged, has its letter; a revived one gets another."""
    consumer = consumer_of(bus, storage)

    @consumer.on("job.assigned")
    async def fail(message: MessageEnvelope, _uow: UnitOfWork) -> None:
        raise ValueError("no")

    async with consumer:
        for _ in range(2):
            await bus.publish(job())
            await drained(consumer)
        [first] = await letters(storage)
        await bus.publish_many([revive(first.envelope())] * 2)
        await drained(consumer)
        [_, second] = await letters(storage)
    assert first.id == second.event_metadata["revived_from"]
    assert "id-a" == second.event_metadata["dead_letter_id"]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_handler_that_ends_the_transaction(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, ending: str
) -> None:
    """A clear error, nothing acked, nothing kept; in the end a dead letter that says why."""
    consumer = consumer_of(bus, storage)
    lags: list[int | None] = []

    @consumer.on("job.assigned")
    async def careless(message: MessageEnvelope, uow: UnitOfWork) -> None:
        lags.append(await consumer.lag())
        await write(message, uow)
        await getattr(uow.session, ending)()

    await bus.publish(job())
    async with consumer:
        await drained(consumer)
    assert [1, 1, 1] == lags
    assert [] == await names(storage)
    assert TransactionMisuseError.__name__ in str((await record(storage)).reason)


@sqlite_only
async def test_unknown_types_are_parked(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """A type without a handler is never silently consumed, and a later version may replay it."""
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    await bus.publish_many([job(event_type="job.moved"), job("b", event_type="job.moved")])
    async with consumer:
        await drained(consumer)
    assert InboxStatus.PARKED == (await record(storage)).status
    assert ["unknown_type"] * 2 == [
        letter.event_metadata["dead_letter_reason"] for letter in await letters(storage)
    ]
    assert 1 == sum("no handler for event type" in text for text in caplog.messages)
    newer = consumer_of(bus, storage)
    newer.on("job.moved")(write)
    async with newer:
        await bus.publish(job(event_type="job.moved"))
        await drained(newer)
    assert ["a"] == await names(storage)


@sqlite_only
async def test_what_is_processed_already_is_not_buried(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """A redelivery of a processed message to a version that does not know its type is acked."""
    for kind in ("job.assigned", "job.moved"):
        consumer = consumer_of(bus, storage)
        consumer.on(kind)(write)
        async with consumer:
            await bus.publish(job())
            await drained(consumer)
    assert ["a"] == await names(storage)
    assert [] == await letters(storage)
    assert InboxStatus.PROCESSED == (await record(storage)).status


@sqlite_only
async def test_unknown_types_are_ignored_on_request(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """With ignore_unknown they are acked, with one warning per type."""
    consumer = consumer_of(bus, storage, ignore_unknown=True)
    consumer.on("job.assigned")(write)
    await bus.publish_many([job(event_type="job.moved"), job("b", event_type="job.moved")])
    async with consumer:
        await drained(consumer)
    assert [] == await storage.inbox.search()
    assert [] == await letters(storage)
    assert 1 == sum("ignored" in text for text in caplog.messages)


@sqlite_only
async def test_foreign_tenants_are_parked(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """A header cannot choose a tenant that the consumer does not serve."""
    consumer = consumer_of(bus, storage, tenants=["north"])
    consumer.on("job.assigned")(write)
    await bus.publish_many([job("a", tenant_id="north"), job("b", tenant_id="south")])
    async with consumer:
        await drained(consumer)
    assert ["a"] == await names(storage)
    [letter] = await letters(storage)
    assert ("south", "foreign_tenant") == (
        letter.tenant_id,
        letter.event_metadata["dead_letter_reason"],
    )


async def test_what_is_no_message_is_parked_raw(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """Without an id, or with a body that is no JSON: the bytes are kept as they came."""
    consumer = consumer_of(bus, storage)
    consumer.on("job.assigned")(write)
    await consumer.start()
    nested = b"[" * 100_000
    for headers, body in (
        ({"colour": "red\r\nblue"}, b"\x00\xff raw"),
        ({"message_id": "id-x", "event_type": "job.assigned"}, b"{no json"),
        ({"message_id": "id-y", "event_type": "job.assigned"}, nested),
    ):
        bus._append(WireMessage("jobs", None, headers, body), 1)
    bus._wake_all()
    await drained(consumer)
    await consumer.stop()
    order = [b"\x00\xff raw", b"{no json", nested]
    found = sorted(await letters(storage), key=lambda row: order.index(row.payload_bytes or b""))
    raw, broken, deep = found
    assert "dead_letter_id" not in raw.event_metadata
    assert "red  blue" == raw.event_metadata["header_colour"]
    assert ["id-x", "id-y"] == [row.event_metadata["dead_letter_id"] for row in (broken, deep)]
    assert ["id-x", "id-y"] == sorted(r.message_id for r in await storage.inbox.search())
    assert [] == await names(storage)


async def test_the_same_id_with_another_payload_is_parked(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage
) -> None:
    """The second payload is not run and not lost."""
    consumer = consumer_of(bus, storage, dead_letter_topic="graveyard")
    consumer.on("job.assigned")(write)
    async with consumer:
        await bus.publish(job("a"))
        await drained(consumer)
        await bus.publish(job("b", event_id="id-a"))
        await drained(consumer)
    assert ["a"] == await names(storage)
    [letter] = await letters(storage)
    assert ("graveyard", "conflict", {"name": "b"}) == (
        letter.topic,
        letter.event_metadata["dead_letter_reason"],
        letter.payload,
    )


async def test_another_payload_that_comes_twice_at_once_leaves_one_letter(
    storage: SqlAlchemyStorage,
) -> None:
    """Failure mode C14: neither of the two could see the letter of the other, and one failed."""
    inbox = ConsumerInbox(storage, "billing")

    async def conflict(number: int) -> Outcome:
        given = (f"m-{number}", "orders", "OrderPlaced", {"name": "b"}, perform)
        return (await inbox.process(*given)).outcome

    for number in range(5):
        await inbox.process(f"m-{number}", "orders", "OrderPlaced", {"name": "a"}, perform)
        found = await asyncio.gather(*(conflict(number) for _ in range(4)))
        assert [Outcome.CONFLICT] * 4 == found
    assert {f"m-{number}" for number in range(5)} == {
        letter.event_metadata["dead_letter_id"] for letter in await letters(storage)
    }
    assert 5 == len(await letters(storage))


async def test_dead_letters_that_cannot_be_written_are_tried_again(
    bus: InMemoryMessageBus, storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While settling fails the message is not acked, and the handler is not run again."""
    consumer = consumer_of(bus, storage)
    runs: list[str] = []
    refusals: list[int | None] = []
    original = consumer._storage.gate

    class Refusing:
        def __init__(self, gate: Any) -> None:
            self._gate = gate

        def __getattr__(self, name: str) -> Any:
            return getattr(self._gate, name)

        async def bury(self, letter: MessageEnvelope) -> None:
            if len(refusals) < 3:
                refusals.append(await consumer.lag())
                raise RuntimeError("the disk is full")
            await self._gate.bury(letter)

    monkeypatch.setattr(storage, "gate", lambda uow: Refusing(original(uow)))

    @consumer.on("job.assigned")
    async def fail(message: MessageEnvelope) -> None:
        runs.append(message.event_id)
        raise ValueError("no")

    await bus.publish(job())
    async with consumer:
        await drained(consumer)
    assert 3 == len(runs)
    assert [1, 1, 1] == refusals
    assert 1 == len(await letters(storage))
    assert InboxStatus.DEAD == (await record(storage)).status
