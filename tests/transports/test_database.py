"""The database bus: the contract of all buses on every database, and what only it promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from semel.envelope import MessageEnvelope
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts import MessageBusContract
from semel.transports.database import DatabaseMessageBus
from tests.services import BACKENDS, Database, fresh_database


@pytest.fixture(scope="module", params=list(BACKENDS))
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """One database per backend for the whole contract: its tests have topics of their own."""
    with fresh_database(request.param, tmp_path_factory.mktemp("bus")) as fresh:
        yield fresh


class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True

    @pytest.fixture
    async def bus(self, shared: Database) -> AsyncIterator[DatabaseMessageBus]:
        async with SqlAlchemyStorage(shared.url) as storage:
            await storage.initialize()
            async with DatabaseMessageBus(storage, lease_seconds=3) as bus:
                yield bus

    async def break_key(self, bus, topic: str, key: str) -> MessageEnvelope:
        return MessageEnvelope(topic=topic, key=key, body=bytes(5 * 1024 * 1024))
