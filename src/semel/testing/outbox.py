"""Look at what a service has added to its outbox."""

from __future__ import annotations

from typing import Any

from semel.hub import Hub
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord


async def added(storage: SqlAlchemyStorage, **equals: Any) -> list[OutboxRecord]:
    """Return the newest events that were committed, oldest first, with these attributes."""
    rows = reversed(await storage.outbox.search(limit=1000))
    return [row for row in rows if all(getattr(row, n) == v for n, v in equals.items())]


async def assert_added(storage: SqlAlchemyStorage, **equals: Any) -> OutboxRecord:
    """Assert that exactly one event with these attributes was committed, and return it.

    >>> await assert_added(storage, topic="orders", payload={"id": 1})  # doctest: +SKIP
    """
    found = await added(storage, **equals)
    if len(found) == 1:
        return found[0]
    known = [f"{row.topic}/{row.event_type}" for row in await added(storage)]
    wanted = ", ".join(f"{name}={value!r}" for name, value in equals.items() if name != "payload")
    raise AssertionError(
        f"{len(found)} events with {wanted or 'this payload'}, expected 1; "
        f"the outbox has: {', '.join(known) or 'nothing'}"
    )


async def drain(hub: Hub, *, seconds: float = 30.0) -> None:
    """Wait until all committed events are sent and handled by the running hub."""
    await hub.drain(seconds=seconds)
