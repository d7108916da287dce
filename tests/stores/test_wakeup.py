"""Wake-ups end with the storage that sends them."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from semel import SqlAlchemyOutbox, SqlAlchemyStorage
from tests.services import Database


async def test_a_closed_storage_opens_no_connection_for_commits_on_its_engine(postgres: Database):
    """The engine is its owner's and goes on; nobody would close such a connection."""
    engine = create_async_engine(postgres.url)
    storage = SqlAlchemyStorage(engine)
    try:
        await storage.initialize()
        await storage.close()
        async with AsyncSession(engine) as session:
            await SqlAlchemyOutbox(session).add(topic="orders", payload={})
            await session.commit()
        assert storage.relay._wakeup._sender is None
        assert 0 == engine.pool.checkedout()
    finally:
        await engine.dispose()
