"""One test class per protocol: subclass it, give it a fixture, and run pytest.

    class TestMyBus(MessageBusContract):
        @pytest_asyncio.fixture
        async def bus(self):
            async with MyBus("my://localhost") as bus:
                yield bus

What an implementation cannot do is switched off by a flag, such as `reports_lag = False`.
"""

import pytest

# Before the import: assertions in a package that is installed explain nothing otherwise.
pytest.register_assert_rewrite(
    "semel.testing.contracts.bus",
    "semel.testing.contracts.idempotency",
    "semel.testing.contracts.inbox",
    "semel.testing.contracts.inbox_search",
    "semel.testing.contracts.leases",
    "semel.testing.contracts.log",
    "semel.testing.contracts.observer",
    "semel.testing.contracts.outbox",
    "semel.testing.contracts.outbox_repair",
    "semel.testing.contracts.outbox_search",
    "semel.testing.contracts.outbox_store",
    "semel.testing.contracts.relay",
    "semel.testing.contracts.rows",
    "semel.testing.contracts.subscription",
    "semel.testing.contracts.workers",
)

from semel.testing.contracts.bus import MessageBusContract  # noqa: E402
from semel.testing.contracts.log import MessageLogContract  # noqa: E402

__all__ = ["MessageBusContract", "MessageLogContract"]
