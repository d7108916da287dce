"""The database bus as a log that anybody may read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from semel.protocols import MessageLog
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts import MessageLogContract
from semel.testing.contracts.harness import message
from semel.transports.database import DatabaseMessageBus
from semel.transports.memory import InMemoryMessageBus
from tests.services import BACKENDS, Database, fresh_database
from tests.transports.database_bus import backends


@pytest.fixture(scope="module", params=backends(*BACKENDS))
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    with fresh_database(request.param, tmp_path_factory.mktemp("log")) as fresh:
        yield fresh


class TestContract(MessageLogContract):
    @pytest.fixture
    async def bus(self, shared: Database) -> AsyncIterator[DatabaseMessageBus]:
        async with SqlAlchemyStorage(shared.url) as storage:
            await storage.initialize()
            async with DatabaseMessageBus(storage, retention=timedelta(0)) as bus:
                yield bus

    async def test_removed_messages_are_below_the_bounds(
        self, bus: DatabaseMessageBus, topic: str
    ) -> None:
        """After a cleanup the first position is behind what is gone."""
        await bus.bounds(topic)
        await bus.publish_many([message(topic, key="one") for _ in range(3)])
        await bus.cleanup()
        await bus.publish(message(topic, key="one"))

        [(first, end)] = [pair for pair in (await bus.bounds(topic)).values() if pair[1]]
        assert (3, 4) == (first, end)


async def test_cleanup_of_some_topics(semel_storage: SqlAlchemyStorage) -> None:
    """A bus that keeps its messages for a shorter time leaves those of the others alone."""
    async with DatabaseMessageBus(
        semel_storage, retention=timedelta(0), cleanup_topics=["live.orders"]
    ) as bus:
        await bus.publish_many([message("orders"), message("live.orders")])

        assert 1 == await bus.cleanup()
        kept = [end - first for first, end in (await bus.bounds("orders")).values()]
        gone = [end - first for first, end in (await bus.bounds("live.orders")).values()]
        assert (1, 0) == (sum(kept), sum(gone))


def test_who_is_a_log() -> None:
    """The capability is asked for, not a broker's name."""
    assert issubclass(DatabaseMessageBus, MessageLog)
    assert not issubclass(InMemoryMessageBus, MessageLog)
