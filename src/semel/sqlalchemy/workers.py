"""Which projectors run, what they own, and taking it from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Row, Table, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.errors import ConfigurationError
from semel.operations import BreakerState, Lease, Worker
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.tables import OutboxInstance, OutboxLease

_lease = cast("Table", OutboxLease.__table__)
_instance = cast("Table", OutboxInstance.__table__)
_NOBODY = "(released)"


class SqlAlchemyWorkerStore(OperatorSide):
    """Looks at projectors and their leases."""

    async def workers(self) -> Sequence[Worker]:
        """List projectors that were heard of lately."""
        async with self._reader.connect() as connection:
            return await read_workers(connection, await read_leases(connection))

    async def leases(self) -> Sequence[Lease]:
        """List all leases by scope and partition."""
        async with self._reader.connect() as connection:
            return await read_leases(connection)

    async def release_leases(
        self,
        *,
        owner: str | None = None,
        partition: int | None = None,
        scope: str = "*",
        actor: str = "unknown",
    ) -> int:
        """Take leases away; others may claim them when their time is over."""
        if (owner is None) == (partition is None):
            raise ConfigurationError("release the leases of an owner, or that of a partition")
        target = owner if owner is not None else f"partition {partition} of scope {scope}"
        trail = Trail(actor=actor, action="lease.release", target=target)
        ours = (
            _lease.c.owner == owner
            if owner is not None
            else (_lease.c.partition_no == partition) & (_lease.c.scope == scope)
        )

        async def work(connection: AsyncConnection) -> int:
            # Owner and epoch change, so nothing that the owner still writes counts. The time stays:
            # until then it may be publishing, and nobody else may begin.
            found = await connection.execute(
                select(_lease.c.scope, _lease.c.partition_no, _lease.c.owner, _lease.c.epoch)
                .where(
                    ours,
                    _lease.c.owner.not_in([_NOBODY]),
                    _lease.c.expires_at > self._database.now(),
                )
                .with_for_update()
            )
            rows = found.all()
            for row in rows:
                await connection.execute(
                    update(_lease)
                    .where(_lease.c.scope == row.scope, _lease.c.partition_no == row.partition_no)
                    .values(owner=_NOBODY, epoch=row.epoch + 1)
                )
            if rows:
                taken = [[row.scope, row.partition_no, row.owner, row.epoch] for row in rows]
                await trail.note(connection, leases=taken)
            return len(rows)

        return await self._transact(work)


async def read_leases(
    connection: AsyncConnection, *conditions: ColumnElement[bool]
) -> Sequence[Lease]:
    """Return leases by scope and partition."""
    left = database_of(connection.dialect).seconds_until(_lease.c.expires_at).label("left")
    found = await connection.execute(
        select(_lease, left).where(*conditions).order_by(_lease.c.scope, _lease.c.partition_no)
    )
    return [
        Lease(
            scope=row.scope,
            partition=row.partition_no,
            owner=row.owner,
            epoch=row.epoch,
            expires_at=row.expires_at,
            expires_seconds=None if row.left is None else float(row.left),
        )
        for row in found
    ]


async def read_workers(connection: AsyncConnection, leases: Sequence[Lease]) -> Sequence[Worker]:
    """Return projectors by id, with those of *leases* that they hold."""
    owned: defaultdict[str | None, list[int]] = defaultdict(list)
    for lease in leases:
        if lease.is_held:
            owned[lease.owner].append(lease.partition)
    age = database_of(connection.dialect).seconds_until(_instance.c.heartbeat_at).label("age")
    found = await connection.execute(select(_instance, age).order_by(_instance.c.id))
    return [_worker(row, owned[row.id]) for row in found]


def _worker(row: Row[Any], partitions: Sequence[int]) -> Worker:
    detail: Mapping[str, Any] = row.detail or {}
    return Worker(
        id=row.id,
        scope=row.scope,
        host=detail.get("host"),
        pid=detail.get("pid"),
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        heartbeat_seconds=max(0.0, -float(row.age)),
        lease_seconds=detail.get("lease_seconds"),
        partitions=tuple(partitions),
        published=detail.get("published"),
        published_per_second=detail.get("published_per_second"),
        failed=detail.get("failed"),
        waiting_for=detail.get("waiting_for"),
        breakers=tuple(
            BreakerState(
                topic=item["topic"],
                since=datetime.fromisoformat(item["since"]),
                trips=item["trips"],
                error=item["error"],
            )
            for item in detail.get("breakers") or ()
        ),
    )
