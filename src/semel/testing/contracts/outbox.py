"""What the outbox of a storage must do, for writers, operators and projectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from semel.aggregate import AggregateRoot
from semel.envelope import MessageEnvelope
from semel.errors import (
    ConfigurationError,
    InvalidMessageError,
    NoTransactionError,
    PayloadTooLargeError,
    SerializationError,
)
from semel.protocols import Storage
from semel.states import OutboxStatus
from semel.testing.contracts.outbox_store import OutboxStoreContract
from semel.testing.contracts.relay import RelayStoreContract
from semel.testing.contracts.rows import add, ids, unsent

__all__ = ["OutboxContract", "OutboxStoreContract", "RelayStoreContract"]


BAD_INPUT: Sequence[tuple[type[Exception], dict[str, Any]]] = [
    (SerializationError, {"payload": object()}),
    (SerializationError, {"payload": float("nan")}),
    (SerializationError, {"payload": "a\x00b"}),
    (SerializationError, {"payload": "\ud800"}),
    (PayloadTooLargeError, {"payload": "x" * (256 * 1024)}),
    (InvalidMessageError, {"topic": ""}),
    (InvalidMessageError, {"topic": "x" * 256}),
    (InvalidMessageError, {"topic": "a\nb"}),
    (InvalidMessageError, {"topic": "\ud800"}),
    (InvalidMessageError, {"key": 7}),
    (InvalidMessageError, {"event_id": "a\x00"}),
    (InvalidMessageError, {"metadata": {"n": "v\r\nx: y"}}),
    (InvalidMessageError, {"metadata": {"n": 1}}),
    (InvalidMessageError, {"metadata": ["n"]}),
    (InvalidMessageError, {"schema_version": 0}),
    (InvalidMessageError, {"occurred_at": datetime(2020, 1, 1)}),  # noqa: DTZ001  on purpose
    (InvalidMessageError, {"available_at": datetime(2020, 1, 1)}),  # noqa: DTZ001  on purpose
]


class _Order(AggregateRoot):
    topic = "orders"

    def __init__(self, number: str) -> None:
        self.id = number


class OutboxContract:
    """Give it a fixture `storage` with empty tables."""

    async def test_an_event_exists_once_its_transaction_has_committed(
        self, storage: Storage
    ) -> None:
        """Nobody sees it earlier, and it is what was added."""
        async with storage.unit_of_work(tenant_id="acme") as uow:
            record = await uow.outbox.add(
                "orders",
                {"id": 1},
                key="o-1",
                event_type="OrderPlaced",
                aggregate_id="1",
                aggregate_type="Order",
                routing_key="eu",
                metadata={"user_id": "u"},
                schema_id="urn:order",
                schema_version=2,
            )
            assert [] == await ids(storage)
            await uow.commit()
        [entry] = await unsent(storage)
        envelope = entry.envelope
        assert (record.id, "acme", "orders", "OrderPlaced") == (
            envelope.event_id,
            envelope.tenant_id,
            envelope.topic,
            envelope.event_type,
        )
        assert ("o-1", "1", "Order", "eu") == (
            envelope.order_key,
            envelope.aggregate_id,
            envelope.aggregate_type,
            envelope.routing_key,
        )
        assert ("urn:order", 2, {"user_id": "u"}) == (
            envelope.schema_id,
            envelope.schema_version,
            envelope.metadata,
        )
        assert {"id": 1} == envelope.payload
        assert record.occurred_at == envelope.occurred_at
        assert (OutboxStatus.NEW, 0, ("acme", "o-1")) == (entry.status, entry.attempts, entry.key)

    async def test_the_event_type_is_the_topic_unless_given(self, storage: Storage) -> None:
        await add(storage, "orders")
        [entry] = await unsent(storage)
        assert "orders" == entry.envelope.event_type

    async def test_nothing_exists_without_a_commit(self, storage: Storage) -> None:
        """Leaving the block rolls back, and so does an exception."""
        async with storage.unit_of_work() as uow:
            await uow.outbox.add("orders", {})
        with pytest.raises(ZeroDivisionError):
            await self._fail(storage)
        async with storage.unit_of_work() as uow:
            await uow.outbox.add("orders", {})
            await uow.rollback()
            await uow.commit()
        assert [] == await ids(storage)

    async def _fail(self, storage: Storage) -> None:
        async with storage.unit_of_work() as uow:
            await uow.outbox.add("orders", {})
            raise ZeroDivisionError

    async def test_the_order_of_adding_is_kept(self, storage: Storage) -> None:
        """Also by `put`, also over several commits of one unit of work."""
        envelopes = [MessageEnvelope(topic="t", payload=n, key=f"{n}") for n in range(40)]
        async with storage.unit_of_work() as uow:
            await uow.outbox.put(*envelopes[:20])
            await uow.commit()
            await uow.outbox.put(*envelopes[20:])
            await uow.commit()
        assert [envelope.event_id for envelope in envelopes] == await ids(storage)

    async def test_put_writes_what_it_is_given(self, storage: Storage) -> None:
        """An envelope keeps its id, tenant, times and bytes."""
        sent = MessageEnvelope(
            topic="t",
            body=b'{ "b" : 1.0, "a":1 }',
            event_id="e-1",
            tenant_id="acme",
            occurred_at=datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            metadata={"n": "v"},
        )
        async with storage.unit_of_work() as uow:
            await uow.outbox.put(sent)
            await uow.outbox.put()
            await uow.commit()
        [entry] = await unsent(storage)
        assert sent == entry.envelope

    async def test_bytes_of_any_kind_are_kept(self, storage: Storage) -> None:
        body = bytes(range(256))
        async with storage.unit_of_work() as uow:
            await uow.outbox.put(MessageEnvelope(topic="t", body=body, content_type="x/y"))
            await uow.commit()
        [entry] = await unsent(storage)
        assert (body, "x/y") == (entry.envelope.body, entry.envelope.content_type)

    async def test_bad_input_raises_at_once_and_harms_nothing(self, storage: Storage) -> None:
        """The caller's transaction goes on, with the events before and after."""
        async with storage.unit_of_work() as uow:
            added = [await uow.outbox.add("t", "before")]
            for expected, options in BAD_INPUT:
                arguments: dict[str, Any] = {"topic": "t", "payload": 1, **options}
                with pytest.raises(expected):
                    await uow.outbox.add(**arguments)
            added.append(await uow.outbox.add("t", "after"))
            await uow.commit()
        assert [record.id for record in added] == await ids(storage)

    async def test_put_adds_all_or_nothing(self, storage: Storage) -> None:
        good = MessageEnvelope(topic="t", payload=1)
        no_json = MessageEnvelope(topic="t", body=b"{no json")
        async with storage.unit_of_work() as uow:
            with pytest.raises(SerializationError):
                await uow.outbox.put(good, no_json)
            await uow.commit()
        assert [] == await ids(storage)

    async def test_a_unit_of_work_must_be_entered(self, storage: Storage) -> None:
        uow = storage.unit_of_work()
        for use in (lambda: uow.outbox, lambda: uow.session, lambda: uow.track(_Order("1"))):
            with pytest.raises(NoTransactionError):
                use()

    async def test_tracked_aggregates_are_collected_at_commit(self, storage: Storage) -> None:
        """Tracking twice is tracking once; what is committed is not sent again."""
        order = _Order("o-1")
        order.add_event({"n": 1}, event_type="Placed")
        async with storage.unit_of_work() as uow:
            uow.track(order)
            uow.track(order)
            order.add_event({"n": 2}, event_type="Paid")
            await uow.commit()
            await uow.commit()
        async with storage.unit_of_work() as uow:
            uow.track(order)
            await uow.commit()
        entries = await unsent(storage)
        assert ["Placed", "Paid"] == [entry.envelope.event_type for entry in entries]
        assert {("default", "_Order:o-1")} == {entry.key for entry in entries}

    async def test_what_has_no_events_cannot_be_tracked(self, storage: Storage) -> None:
        async with storage.unit_of_work() as uow:
            with pytest.raises(ConfigurationError):
                uow.track(object())  # type: ignore[arg-type]

    async def test_the_cause_gives_correlation_and_ids(self, storage: Storage) -> None:
        """A second execution for the same message emits the same ids, another consumer others."""
        cause = MessageEnvelope(topic="orders", payload=1, metadata={"correlation_id": "c-1"})
        emitted = []
        for consumer in ("billing", "billing", "shipping"):
            async with storage.unit_of_work(cause=cause, consumer_name=consumer) as uow:
                records = [await uow.outbox.add("out", 1) for _ in range(2)]
                emitted.append([record.id for record in records])
        assert emitted[0] == emitted[1]
        assert 4 == len({*emitted[0], *emitted[2]})
        order = _Order("o-1")
        order.add_event({"n": 1})
        async with storage.unit_of_work(cause=cause, consumer_name="billing") as uow:
            await uow.outbox.add("out", 1)
            uow.track(order)
            await uow.commit()
        for entry in await unsent(storage):
            assert "c-1" == entry.envelope.correlation_id
            assert cause.event_id == entry.envelope.causation_id

    async def test_what_a_cause_emitted_is_not_emitted_again(
        self, storage: Storage, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A second execution commits, and adds what the first did not; who differs is told."""
        cause = MessageEnvelope(topic="orders", payload=1)
        for payloads in (["a", "b"], ["a", "b"], ["a", "other", "c"], ["a", "b", "c", "d"]):
            async with storage.unit_of_work(cause=cause) as uow:
                for payload in payloads:
                    await uow.outbox.add("out", payload, key="k")
                await uow.outbox.add(
                    "plain", len(payloads), event_id=f"run-{len(await ids(storage))}"
                )
                await uow.commit()
        found = [entry.envelope for entry in await unsent(storage)]
        assert ["a", "b", "c", "d"] == [each.payload for each in found if each.topic == "out"]
        assert [2, 2, 3, 4] == [each.payload for each in found if each.topic == "plain"]
        assert 1 == caplog.text.count("with another payload")

    async def test_an_id_of_ones_own_must_be_new(self, storage: Storage) -> None:
        """Also beside events that a second execution leaves out: nothing of it is committed."""
        cause = MessageEnvelope(topic="orders", payload=1)
        for more in (False, True):
            async with storage.unit_of_work(cause=cause) as uow:
                await uow.outbox.add("out", 1)
                await uow.outbox.add("out", 2, event_id="mine")
                if not more:
                    await uow.commit()
                    continue
                await uow.outbox.add("out", 3)
                with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
                    await uow.commit()
        assert [1, 2] == [entry.envelope.payload for entry in await unsent(storage)]
