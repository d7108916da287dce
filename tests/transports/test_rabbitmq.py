"""RabbitMQ: the contract of all buses on a real server, and what only it promises."""

import pytest

from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import message
from semel.transports.rabbitmq import RabbitMQMessageBus

pytestmark = pytest.mark.rabbitmq


class TestContract(MessageBusContract):
    prefix = "cloudEvents_"
    parallel_members = False  # a single active consumer
    replays_to_new_groups = False  # a queue begins with its group
    survives_restart = True
    breaks_keys = True

    @pytest.fixture
    async def bus(self, service):
        async with RabbitMQMessageBus(service("rabbitmq"), max_message_bytes=1_000_000) as bus:
            yield bus

    async def break_key(self, bus, topic, key):
        return message(topic, key=key, body=b"x" * 1_000_001)


class TestCompetingContract(TestContract):
    """Without a single active consumer members share, and a key has no order among them."""

    ordered = False
    parallel_members = True

    @pytest.fixture
    async def bus(self, service):
        async with RabbitMQMessageBus(
            service("rabbitmq"), single_active_consumer=False, max_message_bytes=1_000_000
        ) as bus:
            yield bus
