"""What `MessageBus` promises, as tests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError, PublishError
from semel.protocols import MessageBus
from semel.testing.contracts.harness import by_key, ids, message
from semel.testing.contracts.subscription import SubscriptionContract


class MessageBusContract(SubscriptionContract):
    """Tests of a bus. A subclass gives a fixture `bus` with a started one, and says what it can."""

    async def test_start_twice(self, bus: MessageBus) -> None:
        """Starting a started bus changes nothing."""
        await bus.start()
        await bus.start()
        await bus.ping()

    async def test_ping(self, bus: MessageBus) -> None:
        """A broker that answers makes ping return."""
        async with asyncio.timeout(self.patience_seconds):
            await bus.ping()

    async def test_close_twice(self, bus: MessageBus) -> None:
        """Closing a closed bus changes nothing."""
        await bus.close()
        await bus.close()

    async def test_publish_after_close(self, bus: MessageBus, topic: str) -> None:
        """A closed bus refuses to publish instead of losing the message."""
        await bus.close()
        with pytest.raises(BusError):
            await bus.publish(message(topic))
        with pytest.raises(BusError):
            await bus.publish_many([message(topic)])

    async def test_publish(self, bus: MessageBus, topic: str) -> None:
        """A published message arrives."""
        sent = message(topic)
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent)
            assert [sent.event_id] == ids(await reader.messages(1))

    async def test_publish_nothing(self, bus: MessageBus) -> None:
        """An empty batch has an empty result."""
        assert not list(await bus.publish_many([]))

    async def test_outcome_per_message(self, bus: MessageBus, topic: str) -> None:
        """A confirmed batch has one None per message."""
        async with await self.read(bus, topic):
            results = await bus.publish_many([message(topic) for _ in range(3)])
        expected: list[PublishError | None] = [None] * 3
        assert expected == list(results)

    async def test_large_batch(self, bus: MessageBus, topic: str) -> None:
        """A batch of 2,000 arrives whole, each key in order."""
        sent = [message(topic, key=f"k{n % 20}", payload=n) for n in range(2000)]
        async with await self.read(bus, topic) as reader:
            assert not any(await bus.publish_many(sent))
            assert by_key(sent) == by_key(await reader.messages(2000))

    async def test_failure_stops_its_key(self, bus: MessageBus, topic: str) -> None:
        """After a failure no later message of the key is sent, and each has the same error."""
        self.needs("breaks_keys")
        bad = await self.break_key(bus, topic, "bad")
        before, after = message(topic, key="bad"), message(topic, key="bad")
        other = message(topic, key="good")
        async with await self.read(bus, topic) as reader:
            results = list(await bus.publish_many([before, bad, other, after]))
            assert results[0] is None
            assert results[2] is None
            assert isinstance(results[1], PublishError)
            assert results[3] is results[1]
            assert {before.event_id, other.event_id} == set(ids(await reader.messages(2)))
            assert await reader.silent(self.quiet_seconds)

    async def test_failure_raises(self, bus: MessageBus, topic: str) -> None:
        """What publish_many reports, publish raises."""
        self.needs("breaks_keys")
        bad = await self.break_key(bus, topic, "bad")
        with pytest.raises(PublishError):
            await bus.publish(bad)

    async def test_publish_twice(self, bus: MessageBus, topic: str) -> None:
        """A message that is published again keeps its id, and comes again unless deduplicated."""
        sent = message(topic)
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent)
            await bus.publish(sent)
            expected = [sent.event_id] * (1 if self.deduplicates else 2)
            assert expected == ids(await reader.messages(len(expected)))
            assert await reader.silent(self.quiet_seconds)

    @pytest.mark.parametrize(
        "body", [b'{"a": 1.0,\n "\xc3\xa4":[]}', b"\x00\xff\xfe\r\n", b"x" * 100_000]
    )
    async def test_exact_bytes(self, bus: MessageBus, topic: str, body: bytes) -> None:
        """The body arrives byte for byte, with its content type."""
        sent = message(topic, body=body, content_type="application/x-bytes")
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent)
            (received,) = await reader.messages(1)
        assert body == received.body
        assert received.content_type == "application/x-bytes"

    async def test_every_field(self, bus: MessageBus, topic: str) -> None:
        """Ids, tenant, type, aggregate, schema, time to the microsecond and metadata arrive."""
        sent = MessageEnvelope(
            topic=topic,
            payload={"name": "Jürgen 🎉", "n": [1, None]},
            event_type="OrderPlaced",
            event_id="Ereignis-ä/1",
            tenant_id="Mandant Ø",
            aggregate_id="42",
            aggregate_type="Order",
            routing_key="eu.orders",
            schema_id="https://example.com/order.json",
            schema_version=7,
            source="https://example.com/shop",
            occurred_at=datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=UTC).astimezone(
                timezone(timedelta(hours=-5, minutes=-30))
            ),
            metadata={
                "correlation_id": "c-1",
                "causation_id": "c-0",
                "user_id": "Zoë 100%",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "tracestate": "congo=t61rcWkgMzE",
                "X-Request.Id_9": 'a "quoted" value',
                "region": "eu",
            },
        )
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent)
            (received,) = await reader.messages(1)
        assert sent == received
        assert sent.payload == received.payload

    async def test_key_arrives(self, bus: MessageBus, topic: str) -> None:
        """An explicit key arrives beside the aggregate; no key stays no key."""
        keyed = message(topic, key="Schlüssel 1", aggregate_id="42")
        free = message(topic)
        async with await self.read(bus, topic) as reader:
            await bus.publish_many([keyed, free])
            received = {m.event_id: m for m in await reader.messages(2)}
        assert received[keyed.event_id].order_key == "Schlüssel 1"
        assert received[keyed.event_id].aggregate_id == "42"
        assert received[free.event_id].order_key is None

    async def test_cloudevents_headers(self, bus: MessageBus, topic: str) -> None:
        """Consumers without semel find CloudEvents headers and a message_id."""
        sent = message(topic, event_type="OrderPlaced", aggregate_id="42", key="k")
        async with await self.read(bus, topic) as reader:
            await bus.publish(sent)
            (delivery,) = await reader.take()
            await delivery.ack()
        headers = delivery.wire.headers
        assert sent.event_id == headers["message_id"]
        assert headers["content-type"] == "application/json"
        expected = {"specversion": "1.0", "id": sent.event_id, "type": "OrderPlaced"}
        expected |= {"subject": "42", "partitionkey": "k", "tenantid": "default"}
        assert expected == {name: headers[self.prefix + name] for name in expected}
        assert headers[self.prefix + "source"]
        assert headers[self.prefix + "time"]
