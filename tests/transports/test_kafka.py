"""Kafka: the contract of all buses on a real broker, and what only this bus promises."""

import asyncio

import pytest

from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import message
from semel.transports.kafka import KafkaMessageBus

pytestmark = pytest.mark.kafka


class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True

    @pytest.fixture
    async def bus(self, service):
        async with KafkaMessageBus(service("kafka")) as bus:
            yield bus

    async def prepare(self, bus, topic):
        await bus.declare(topic, partitions=4, config={"max.message.bytes": "200000"})

    async def break_key(self, bus, topic, key):
        """The topic takes less than the client: the broker refuses it, not we."""
        return message(topic, key=key, body=b"x" * 300_000, content_type="text/plain")
