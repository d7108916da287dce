"""A message has one effect, whatever happens around it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import event, insert
from sqlalchemy.ext.asyncio import AsyncSession

from semel.envelope import MessageEnvelope
from semel.errors import (
    ConfigurationError,
    InvalidMessageError,
    NoTransactionError,
    TransactionMisuseError,
)
from semel.inbox import ConsumerInbox, Outcome
from semel.observer import NullObserver
from semel.operations import InboxFilter
from semel.sqlalchemy.inbox import SqlAlchemyInbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import InboxStatus
from tests.scenarios.consuming import effects, letters, names, perform, run


class Counts(NullObserver):
    """Remembers what was counted and recorded."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.records: Counter[str] = Counter()
        self.labels: dict[str, dict[str, str]] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.counts[name] += int(value)
        self.labels[name] = labels

    def record(self, name: str, *values: float, **labels: str) -> None:
        self.records[name] += len(values)


async def test_a_duplicate_is_skipped(storage: SqlAlchemyStorage) -> None:
    """The first call returns the handler's result, the second None; both are counted."""
    counts = Counts()
    inbox = ConsumerInbox(storage, consumer_name="billing", observer=counts)
    assert "did a" == await run(inbox)
    assert await run(inbox) is None
    assert ["a"] == await names(storage)
    assert {
        "consumer_inbox_processed_total": 1,
        "consumer_inbox_duplicates_total": 1,
    } == counts.counts
    assert {"consumer_name": "billing", "event_type": "OrderPlaced"} == counts.labels[
        "consumer_inbox_processed_total"
    ]
    assert {"consumer_inbox_processing_duration_seconds": 1} == counts.records


async def test_a_handler_that_returns_nothing_is_told_from_a_duplicate(
    storage: SqlAlchemyStorage,
) -> None:
    """`process` tells the outcome, also when the result is None."""
    inbox = ConsumerInbox(storage, "billing")
    seen: list[Any] = []
    for expected in (Outcome.PROCESSED, Outcome.DUPLICATE):
        done = await inbox.process("m-1", "orders", "OrderPlaced", {"name": "a"}, seen.append)
        assert expected == done.outcome
    assert [{"name": "a"}] == seen


async def test_two_consumers_both_process(storage: SqlAlchemyStorage) -> None:
    """Services that share a database do not steal each other's messages."""
    for name in ("billing", "shipping"):
        assert "did a" == await run(ConsumerInbox(storage, name))
    assert ["a", "a"] == await names(storage)


async def test_the_same_id_in_two_tenants(storage: SqlAlchemyStorage) -> None:
    """Tenants have ids of their own."""
    for tenant in ("north", "south"):
        assert "did a" == await run(ConsumerInbox(storage, "billing", tenant_id=tenant))
    assert ["a", "a"] == await names(storage)


async def test_two_instances_at_the_same_time(storage: SqlAlchemyStorage) -> None:
    """While one instance is at it the other waits, and then skips the message."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def slow(payload: dict[str, Any], uow: Any) -> str:
        inside.set()
        await go.wait()
        return await perform(payload, uow)

    first = asyncio.create_task(run(ConsumerInbox(storage, "billing"), slow))
    await inside.wait()
    second = asyncio.create_task(run(ConsumerInbox(storage, "billing"), slow))
    _, waiting = await asyncio.wait({second}, timeout=0.2)
    assert {second} == waiting
    go.set()
    async with asyncio.timeout(30):
        assert ["did a", None] == [await first, await second]
    assert ["a"] == await names(storage)


async def test_duplicates_that_wait_for_a_failure(storage: SqlAlchemyStorage) -> None:
    """The first handler fails while duplicates wait for it: one of them takes over, once."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def failing(payload: dict[str, Any], uow: Any) -> None:
        await perform(payload, uow)
        inside.set()
        await go.wait()
        raise ValueError("first")

    first = asyncio.create_task(run(ConsumerInbox(storage, "billing"), failing))
    await inside.wait()
    others = [asyncio.create_task(run(ConsumerInbox(storage, "billing"))) for _ in range(3)]
    await asyncio.wait(others, timeout=0.2)
    go.set()
    async with asyncio.timeout(30):
        with pytest.raises(ValueError, match="first"):
            await first
        assert ["None", "None", "did a"] == sorted(map(str, await asyncio.gather(*others)))
    assert ["a"] == await names(storage)


async def test_a_failed_handler_leaves_nothing_and_runs_again(storage: SqlAlchemyStorage) -> None:
    """The handler's own exception comes out, its effects do not stay, and a redelivery works."""

    class Broken(Exception):  # noqa: N818
        pass

    counts = Counts()
    inbox = ConsumerInbox(storage, "billing", observer=counts)
    error = Broken("no")

    async def fail(payload: dict[str, Any], uow: Any) -> None:
        await perform(payload, uow)
        await uow.outbox.add("invoices", {"x": 1})
        raise error

    with pytest.raises(Broken) as caught:
        await run(inbox, fail)
    assert error is caught.value
    assert caught.value.__cause__ is None
    assert [] == await names(storage)
    assert [] == await letters(storage)
    assert not counts.counts
    assert "did a" == await run(inbox)


@pytest.mark.parametrize("ending", ["commit", "rollback", "uow.commit", "connection.rollback"])
async def test_a_handler_that_ends_the_transaction(storage: SqlAlchemyStorage, ending: str) -> None:
    """Committing or rolling back in a handler is a clear error, and nothing stays."""

    async def careless(payload: dict[str, Any], uow: Any) -> None:
        await perform(payload, uow)
        match ending:
            case "commit":
                await uow.session.commit()
            case "rollback":
                await uow.session.rollback()
            case "uow.commit":
                await uow.commit()
            case _:
                await (await uow.session.connection()).rollback()

    inbox = ConsumerInbox(storage, "billing")
    with pytest.raises(TransactionMisuseError, match="Remove"):
        await run(inbox, careless)
    assert [] == await names(storage)
    assert "did a" == await run(inbox)


async def test_an_event_that_the_handler_emits_has_the_same_id_again(
    storage: SqlAlchemyStorage,
) -> None:
    """Executed again, a handler emits the same ids; another consumer emits others."""

    async def emit(_payload: dict[str, Any], uow: Any) -> str:
        record = await uow.outbox.add("invoices", {"x": 1})
        assert "m-1" == record.event_metadata["causation_id"]
        return str(record.id)

    async def emit_and_fail(payload: dict[str, Any], uow: Any) -> None:
        raise ValueError(await emit(payload, uow))

    inbox = ConsumerInbox(storage, "billing")
    with pytest.raises(ValueError) as caught:
        await run(inbox, emit_and_fail)
    assert str(caught.value) == await run(inbox, emit)
    assert str(caught.value) != await run(ConsumerInbox(storage, "shipping"), emit)


@pytest.mark.parametrize("together", [False, True])
async def test_a_message_that_an_operator_lets_run_again(
    storage: SqlAlchemyStorage, together: bool
) -> None:
    """Its effects happen again; what the handler emitted is in the outbox already, and stays."""

    async def emit(payload: dict[str, Any], uow: Any) -> None:
        await perform(payload, uow)
        await uow.outbox.add("invoices", payload, key="k")

    inbox = ConsumerInbox(storage, "billing")
    message = MessageEnvelope(topic="orders", event_id="m-1", payload={"name": "a"})
    for times in (1, 2):
        if together:
            other = MessageEnvelope(topic="orders", event_id=f"n-{times}", payload={"name": "b"})
            results = await inbox.process_batch([message, other], emit)
            assert [Outcome.PROCESSED] * 2 == [result.outcome for result in results]
        else:
            await run(inbox, emit)
        assert times == (await names(storage)).count("a")
        assert await storage.inbox.forget("m-1", consumer_name="billing")
    emitted = [row.payload["name"] for row in await letters(storage)]
    assert (["a", "b", "b"] if together else ["a"]) == emitted


async def test_in_the_callers_transaction(storage: SqlAlchemyStorage) -> None:
    """With session= the message is processed if and only if the caller commits."""
    counts = Counts()
    inbox = ConsumerInbox(storage, "billing", observer=counts)
    async with storage.session_factory() as session:
        assert "did a" == await run(inbox, session=session)
        await session.rollback()
    assert [] == await names(storage)
    assert not counts.counts
    async with storage.session_factory() as session:
        assert "did a" == await run(inbox, session=session)
        assert not counts.counts
        await session.commit()
    assert ["a"] == await names(storage)
    assert {"consumer_inbox_processed_total": 1} == counts.counts


async def test_a_duplicate_leaves_the_callers_transaction_usable(
    storage: SqlAlchemyStorage,
) -> None:
    """PostgreSQL would abort the transaction after a failed insert: there is none."""
    inbox = ConsumerInbox(storage, "billing")
    await run(inbox)
    async with storage.session_factory() as session, session.begin():
        assert await run(inbox, session=session) is None
        await session.execute(insert(effects).values(name="the caller's"))
    assert ["a", "the caller's"] == await names(storage)


async def test_a_session_without_a_transaction_is_refused(storage: SqlAlchemyStorage) -> None:
    """In AUTOCOMMIT mode the inbox row would stay although the handler failed."""
    engine = storage.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
            await run(ConsumerInbox(storage, "billing"), session=session)
        with pytest.raises(NoTransactionError, match="AUTOCOMMIT"):
            await SqlAlchemyInbox(session).mark_processed("m-1", "OrderPlaced")
    assert [] == await names(storage)


async def test_a_caller_who_catches_the_error_may_go_on(storage: SqlAlchemyStorage) -> None:
    """A failed handler takes its inbox row with it, so that a commit does not lose the message."""

    async def fail(payload: dict[str, Any], uow: Any) -> None:
        await perform(payload, uow)
        raise ValueError("no")

    inbox = ConsumerInbox(storage, "billing")
    async with storage.session_factory() as session, session.begin():
        await session.execute(insert(effects).values(name="before"))
        with pytest.raises(ValueError, match="no"):
            await run(inbox, fail, session=session)
        await session.execute(insert(effects).values(name="after"))
    assert ["before", "after"] == await names(storage)
    assert "did a" == await run(inbox)


async def test_the_same_id_with_another_payload_is_parked(storage: SqlAlchemyStorage) -> None:
    """It is neither run nor lost: it waits in the dead letter topic, with the reason."""
    counts = Counts()
    inbox = ConsumerInbox(storage, "billing", observer=counts)
    await run(inbox)
    assert await run(inbox, payload={"name": "b"}) is None
    assert ["a"] == await names(storage)
    [letter] = await letters(storage)
    assert ("orders.dead", {"name": "b"}) == (letter.topic, letter.payload)
    assert "conflict" == letter.event_metadata["dead_letter_reason"]
    assert "m-1" == letter.event_metadata["dead_letter_id"]
    assert 1 == counts.counts["consumer_inbox_parked_total"]
    assert "conflict" == counts.labels["consumer_inbox_parked_total"]["reason"]


async def test_the_order_of_keys_is_not_another_payload(storage: SqlAlchemyStorage) -> None:
    """The same document written in another way is a duplicate."""
    inbox = ConsumerInbox(storage, "billing")
    await run(inbox, payload={"name": "a", "n": 1})
    assert await run(inbox, payload={"n": 1, "name": "a"}) is None
    assert [] == await letters(storage)


async def test_the_payload_is_kept_on_request(storage: SqlAlchemyStorage) -> None:
    """By default the inbox holds a hash only."""
    await run(ConsumerInbox(storage, "billing"))
    await run(ConsumerInbox(storage, "audit", keep_payload=True))
    [plain] = await storage.inbox.search(InboxFilter(consumer_name="billing"))
    [kept] = await storage.inbox.search(InboxFilter(consumer_name="audit"))
    assert (None, {"name": "a"}) == (plain.payload, kept.payload)
    assert plain.payload_hash is not None
    assert (InboxStatus.PROCESSED, 1, "orders") == (plain.status, plain.attempts, plain.source)


async def test_a_batch_is_one_transaction(storage: SqlAlchemyStorage) -> None:
    """Fifty new messages take one insert into the inbox, one update and one commit."""
    inbox = ConsumerInbox(storage, "billing")
    statements: list[str] = []
    event.listen(
        storage.engine.sync_engine,
        "before_cursor_execute",
        lambda *given: statements.append(given[2]),
    )
    messages = batch(*map(str, range(50)))
    results = await inbox.process_batch(messages, perform)
    assert [Outcome.PROCESSED] * 50 == [done.outcome for done in results]
    mine = [sql.split()[0] for sql in statements if "inbox" in sql]
    assert ["INSERT", "UPDATE"] == mine
    again = await inbox.process_batch(messages, perform)
    assert [Outcome.DUPLICATE] * 50 == [done.outcome for done in again]
    assert 50 == len(await names(storage))


async def test_one_bad_message_does_not_spoil_its_batch(storage: SqlAlchemyStorage) -> None:
    """The bad one fails, what follows of its key is held, everything else is processed once."""
    inbox = ConsumerInbox(storage, "billing")
    await inbox.process_batch(batch("known"), perform)

    async def picky(payload: dict[str, Any], uow: Any) -> None:
        await perform(payload, uow)
        if payload["name"] == "bad":
            raise ValueError("no")

    messages = [*batch("a"), *batch("bad", "behind", key="k"), *batch("b", "known")]
    results = await inbox.process_batch(messages, picky)
    assert ["processed", "failed", "held", "processed", "duplicate"] == [
        done.outcome.value for done in results
    ]
    assert isinstance(results[1].error, ValueError)
    assert ["known", "a", "b"] == await names(storage)


async def test_cleanup_of_one_consumer(storage: SqlAlchemyStorage) -> None:
    """Old entries of this consumer go, young ones stay."""
    inbox = ConsumerInbox(storage, "billing")
    await run(inbox)
    assert 0 == await inbox.cleanup_old_entries(older_than_days=7)
    assert 1 == await inbox.cleanup_old_entries(older_than_days=-1)


async def test_bad_calls_are_refused(storage: SqlAlchemyStorage) -> None:
    """A missing id and a handler that cannot be called are errors before anything happens."""
    inbox = ConsumerInbox(storage, "billing")
    with pytest.raises(InvalidMessageError, match="event_id must be a str, not NoneType"):
        await run(inbox, id=None)

    async def no_parameter() -> None: ...

    with pytest.raises(ConfigurationError, match="takes no parameter"):
        await run(inbox, no_parameter)
    with pytest.raises(InvalidMessageError, match="consumer_name"):
        ConsumerInbox(storage, "")


def batch(*contents: str, key: str | None = None) -> list[MessageEnvelope]:
    return [
        MessageEnvelope(
            topic="orders",
            event_type="OrderPlaced",
            event_id=f"id-{content}",
            key=key,
            payload={"name": content},
        )
        for content in contents
    ]
