"""Leases on partitions: who may publish what."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from semel.relay import ALL_TENANTS, Claim, Instance, Standing
from semel.sqlalchemy.connection import KeptConnection, KeptTransactions
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.layout import PARTITIONS
from semel.sqlalchemy.tables import OutboxControl, OutboxInstance, OutboxLease
from semel.states import Pause

_instance = cast("Table", OutboxInstance.__table__)
_lease = cast("Table", OutboxLease.__table__)


class SqlAlchemyLeases:
    """Instances and leases of projectors."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._database = database_of(engine.dialect)
        self._pulse = KeptConnection(engine)
        self._transactions = KeptTransactions(engine)

    async def heartbeat(self, instance: Instance) -> Standing:
        """Register the instance, renew its leases, tell how it stands."""
        now, until = self._database.now(), self._database.later(instance.lease_seconds)
        async with self._pulse.use() as connection:
            detail = dict(instance.detail)
            seen = await connection.execute(
                update(_instance)
                .where(_instance.c.id == instance.id)
                .values(heartbeat_at=now, detail=detail)
            )
            if seen.rowcount == 0:
                await connection.execute(
                    insert(_instance).values(
                        id=instance.id,
                        scope=instance.scope,
                        started_at=now,
                        heartbeat_at=now,
                        detail=detail,
                    )
                )
            mine = and_(_lease.c.scope == instance.scope, _lease.c.owner == instance.id)
            await connection.execute(update(_lease).where(mine).values(expires_at=until))
            leases = await connection.execute(
                select(_lease.c.partition_no, _lease.c.epoch).where(mine)
            )
            held = {row.partition_no: row.epoch for row in leases}
            alive = self._database.later(-instance.lease_seconds)
            instances = await connection.scalar(
                select(func.count())
                .select_from(_instance)
                .where(_instance.c.scope == instance.scope, _instance.c.heartbeat_at > alive)
            )
            conflict = None if held else await self._conflict(connection, instance.scope)
            pauses, operations = await read_control(connection)
            forgotten = self._database.later(-max(600.0, 10 * instance.lease_seconds))
            # Found by a plain read: a DELETE that scans waits for the rows of other heartbeats.
            gone = await connection.scalars(
                select(_instance.c.id).where(_instance.c.heartbeat_at < forgotten)
            )
            if ids := list(gone):
                await connection.execute(delete(_instance).where(_instance.c.id.in_(ids)))
        return Standing(
            leases=held,
            instances=max(1, instances or 0),
            conflict=conflict,
            pauses=pauses,
            operations=operations,
        )

    async def claim(self, instance: Instance, limit: int) -> Sequence[Claim]:
        """Take free or expired partitions."""
        now, until = self._database.now(), self._database.later(instance.lease_seconds)
        async with self._transactions.begin() as connection:
            # Two scopes that overlap must not both see the other one free.
            await connection.execute(
                select(OutboxControl.value).where(OutboxControl.name == "scope").with_for_update()
            )
            if await self._conflict(connection, instance.scope) is not None:
                return []
            await self._seed(connection, instance.scope)
            free = await connection.execute(
                select(_lease.c.partition_no, _lease.c.epoch, _lease.c.owner)
                .where(
                    _lease.c.scope == instance.scope,
                    or_(_lease.c.owner.is_(None), _lease.c.expires_at <= now),
                )
                .with_for_update(skip_locked=True)
            )
            rows = free.all()
            if not rows:
                return []
            # At random: two that start together shall not fight for the same ones.
            taken = random.sample(rows, min(limit, len(rows)))
            await connection.execute(
                update(_lease)
                .where(
                    _lease.c.scope == instance.scope,
                    _lease.c.partition_no.in_([row.partition_no for row in taken]),
                )
                .values(owner=instance.id, epoch=_lease.c.epoch + 1, expires_at=until)
            )
        return [
            Claim(row.partition_no, row.epoch + 1, row.owner not in (None, instance.id))
            for row in taken
        ]

    async def release(self, instance: Instance, partitions: Collection[int]) -> None:
        """Give partitions back."""
        if not partitions:
            return
        async with self._pulse.use() as connection:
            await connection.execute(
                update(_lease)
                .where(
                    _lease.c.scope == instance.scope,
                    _lease.c.owner == instance.id,
                    _lease.c.partition_no.in_(partitions),
                )
                .values(owner=None, expires_at=None)
            )

    async def retire(self, instance: Instance) -> None:
        """Give everything back and strike the instance off."""
        await self.release(instance, range(PARTITIONS))
        async with self._pulse.use() as connection:
            await connection.execute(delete(_instance).where(_instance.c.id == instance.id))

    async def _conflict(self, connection: AsyncConnection, scope: str) -> str | None:
        other = _lease.c.scope != scope
        if scope != ALL_TENANTS:
            other = _lease.c.scope == ALL_TENANTS
        found: str | None = await connection.scalar(
            select(_lease.c.scope)
            .where(other, _lease.c.owner.is_not(None), _lease.c.expires_at > self._database.now())
            .limit(1)
        )
        return found

    async def _seed(self, connection: AsyncConnection, scope: str) -> None:
        known = set(
            await connection.scalars(select(_lease.c.partition_no).where(_lease.c.scope == scope))
        )
        missing = [
            {"scope": scope, "partition_no": number, "epoch": 0}
            for number in range(PARTITIONS)
            if number not in known
        ]
        if missing:
            await connection.execute(insert(_lease), missing)


def relay_engine(engine: AsyncEngine) -> AsyncEngine:
    """Return *engine* with the isolation level of the relay's own transactions."""
    level = database_of(engine.dialect).relay_isolation
    return engine if level is None else engine.execution_options(isolation_level=level)


async def read_control(connection: AsyncConnection) -> tuple[list[Pause], int]:
    """Return what is paused, and the number of operators' interventions so far."""
    result = await connection.execute(
        select(OutboxControl.name, OutboxControl.value).where(
            OutboxControl.name.in_(["pauses", "operations"])
        )
    )
    values: dict[str, Any] = {row.name: row.value for row in result}
    pauses = [
        Pause(
            topic=item.get("topic"),
            tenant_id=item.get("tenant_id"),
            since=datetime.fromisoformat(item["since"]) if item.get("since") else None,
            reason=item.get("reason"),
        )
        for item in values.get("pauses") or []
    ]
    return pauses, int(values.get("operations") or 0)
