"""What operators did: a row in the same transaction as the deed."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import ColumnElement, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from semel.envelope import check_name
from semel.operations import AuditFilter, Page
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.tables import AuditRecord

_audit = cast("Table", AuditRecord.__table__)
_WINDOW = 20_000


class Trail:
    """The audit row of one action: written with its first transaction, brought up to date later.

    Call `kept` after each commit: what was rolled back is written again.
    """

    def __init__(self, *, actor: str, action: str, target: str | None = None) -> None:
        self._values = {
            "actor": check_name("actor", actor),
            "action": action,
            "target": target,
        }
        self._id: int | None = None
        self._written: int | None = None

    async def note(self, connection: AsyncConnection, **detail: Any) -> None:
        """Write down what has been done so far; no payload belongs here."""
        if self._id is not None:
            await connection.execute(
                update(_audit).where(_audit.c.id == self._id).values(detail=detail)
            )
            return
        now = database_of(connection.dialect).now()
        result = await connection.execute(
            insert(_audit).values(**self._values, at=now, detail=detail or None)
        )
        key = result.inserted_primary_key
        self._written = None if key is None else key[0]

    def kept(self) -> None:
        """The transaction has committed."""
        self._id = self._id or self._written


class SqlAlchemyAuditStore:
    """Reads the audit."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._reader = engine.execution_options(semel_read_only=True)

    async def search(
        self, where: AuditFilter | None = None, *, before: int | None = None, limit: int = 50
    ) -> Page[AuditRecord, int]:
        """Newest first; page on with *before* = the page's `next` until it is None."""
        limit = max(1, min(limit, 1000))
        number = _audit.c.id
        below = [] if before is None else [number < before]
        async with AsyncSession(self._reader) as session:
            floor = await session.scalar(
                select(number).where(*below).order_by(number.desc()).offset(_WINDOW - 1).limit(1)
            )
            if floor is not None:
                below.append(number >= floor)
            found = await session.scalars(
                select(AuditRecord)
                .where(*below, *_conditions(where or AuditFilter()))
                .order_by(number.desc())
                .limit(limit)
            )
            rows = list(found)
        return Page(rows, next=rows[-1].id if len(rows) == limit else floor)


def _conditions(where: AuditFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for name, value in where.criteria().items():
        if name == "since":
            found.append(_audit.c.at >= value)
        elif name == "until":
            found.append(_audit.c.at < value)
        else:
            found.append(_audit.c[name] == value)
    return found
