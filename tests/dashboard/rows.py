"""Rows as a projector and consumers leave them, written without running any."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, update

from semel import SqlAlchemyStorage
from semel.sqlalchemy.layout import DEAD_BLOCKING
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord


async def add(
    storage: SqlAlchemyStorage, event_id: str, *, tenant: str = "acme", **options: Any
) -> None:
    """Commit one event."""
    options = {"topic": "orders", "payload": {"id": event_id}, **options}
    async with storage.unit_of_work(tenant_id=tenant) as uow:
        await uow.outbox.add(event_id=event_id, **options)
        await uow.commit()


async def kill(
    storage: SqlAlchemyStorage,
    ids: Iterable[str],
    *,
    error: str = "PublishError: no",
    stack: str = "",
) -> None:
    """Make events DEAD as a projector does."""
    async with storage.engine.begin() as connection:
        await connection.execute(
            update(OutboxRecord)
            .where(OutboxRecord.id.in_(list(ids)))
            .values(
                status="DEAD",
                lane=OutboxRecord.partition_no + DEAD_BLOCKING,
                retry_count=1,
                error_message=error,
                last_attempt_at=datetime.now(UTC),
                dead_letter={"reason": "permanent", "exception": error, "stack": stack},
            )
        )


async def dead(storage: SqlAlchemyStorage, event_id: str, **options: Any) -> str:
    """Commit one event and make it DEAD; return its id."""
    error, stack = options.pop("error", "PublishError: no"), options.pop("stack", "")
    await add(storage, event_id, **options)
    await kill(storage, [event_id], error=error, stack=stack)
    return event_id


async def handled(storage: SqlAlchemyStorage, message_id: str, **values: Any) -> None:
    """Write an inbox record."""
    now = datetime.now(UTC)
    row = {
        "tenant_id": "acme",
        "consumer_name": "shop",
        "event_type": "OrderPlaced",
        "received_at": now,
        "processed_at": now,
        **values,
    }
    async with storage.engine.begin() as connection:
        await connection.execute(insert(InboxRecord).values(message_id=message_id, **row))
