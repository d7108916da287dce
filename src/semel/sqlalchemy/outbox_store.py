"""The operator's side of the outbox table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.envelope import check_name, check_tenant
from semel.errors import ConfigurationError
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.leases import read_control
from semel.sqlalchemy.operator_side import CONTROL
from semel.sqlalchemy.outbox import MAX_PAYLOAD_BYTES
from semel.sqlalchemy.outbox_bulk import OutboxBulk
from semel.sqlalchemy.outbox_cleanup import OutboxCleanup
from semel.sqlalchemy.outbox_edit import OutboxEditor
from semel.sqlalchemy.outbox_overview import OutboxOverview
from semel.sqlalchemy.outbox_search import OutboxSearch
from semel.sqlalchemy.outbox_stats import OutboxFigures
from semel.sqlalchemy.outbox_why import OutboxReasons
from semel.states import Pause


class SqlAlchemyOutboxStore(
    OutboxSearch,
    OutboxFigures,
    OutboxOverview,
    OutboxReasons,
    OutboxBulk,
    OutboxEditor,
    OutboxCleanup,
):
    """Looks at outbox rows and repairs them; projectors notice within a heartbeat."""

    def __init__(self, engine: AsyncEngine, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        super().__init__(engine)
        self._limit = max_payload_bytes

    async def pause(
        self,
        *,
        topic: str | None = None,
        tenant_id: str | None = None,
        reason: str | None = None,
        actor: str = "unknown",
    ) -> None:
        """Hold back everything, one topic or one tenant, until resumed."""
        _check_pause(topic, tenant_id)
        item = {
            "topic": topic,
            "tenant_id": tenant_id,
            "since": datetime.now(UTC).isoformat(),
            "reason": reason,
        }
        trail = Trail(actor=actor, action="outbox.pause", target=_named(topic, tenant_id))

        async def work(connection: AsyncConnection) -> None:
            operations = await self._queue(connection)
            others = _without(await _locked_pauses(connection), topic, tenant_id)
            await _store_pauses(connection, [*others, item])
            await trail.note(connection, reason=reason)
            await self._announce(connection, operations)

        await self._transact(work)

    async def resume(
        self, *, topic: str | None = None, tenant_id: str | None = None, actor: str = "unknown"
    ) -> bool:
        """End a pause; False if there was none."""
        _check_pause(topic, tenant_id)
        trail = Trail(actor=actor, action="outbox.resume", target=_named(topic, tenant_id))

        async def work(connection: AsyncConnection) -> bool:
            operations = await self._queue(connection)
            stored = await _locked_pauses(connection)
            others = _without(stored, topic, tenant_id)
            if len(others) == len(stored):
                return False
            await _store_pauses(connection, others)
            await trail.note(connection)
            await self._announce(connection, operations)
            return True

        return await self._transact(work)

    async def pauses(self) -> Sequence[Pause]:
        """List what is paused."""
        async with self._reader.connect() as connection:
            pauses, _ = await read_control(connection)
        return pauses


async def _locked_pauses(connection: AsyncConnection) -> list[dict[str, Any]]:
    query = select(CONTROL.c.value).where(CONTROL.c.name == "pauses").with_for_update()
    return await connection.scalar(query) or []


async def _store_pauses(connection: AsyncConnection, pauses: list[dict[str, Any]]) -> None:
    await connection.execute(update(CONTROL).where(CONTROL.c.name == "pauses").values(value=pauses))


def _without(
    pauses: list[dict[str, Any]], topic: str | None, tenant_id: str | None
) -> list[dict[str, Any]]:
    return [
        item for item in pauses if (item.get("topic"), item.get("tenant_id")) != (topic, tenant_id)
    ]


def _named(topic: str | None, tenant_id: str | None) -> str:
    if topic is not None:
        return f"topic {topic}"
    return "everything" if tenant_id is None else f"tenant {tenant_id}"


def _check_pause(topic: str | None, tenant_id: str | None) -> None:
    if topic is not None and tenant_id is not None:
        raise ConfigurationError("pause a topic or a tenant, not both at once")
    if topic is not None:
        check_name("topic", topic)
    if tenant_id is not None:
        check_tenant(tenant_id)
