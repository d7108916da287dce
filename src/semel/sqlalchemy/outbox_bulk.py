"""Requeue, release, drop and replay: by ids, or all that match a filter, batch by batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, null, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.errors import ConfigurationError
from semel.operations import OutboxFilter, Progress, Verb
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.layout import DEAD_RELEASED, PARKED
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import (
    OUTBOX,
    Span,
    bounds,
    conditions,
    lanes_of,
    next_span,
)
from semel.sqlalchemy.types import UtcDateTime
from semel.states import OutboxStatus

_WINDOW = 10_000
_CHUNK = 1000
_SHOWN = 100
# Parked, not hot: a projector takes parked rows up all together and from the lowest on, while in
# the hot lane it would first meet those beyond the point up to which it has read.
_AGAIN: dict[str, Any] = {
    "status": OutboxStatus.NEW.value,
    "retry_count": 0,
    "retry_after": null(),
    "lane": OUTBOX.c.partition_no + PARKED,
}


@dataclass(slots=True)
class _Run:
    """One bulk action under way."""

    verb: Verb
    where: OutboxFilter
    only: ColumnElement[bool]
    span: Span
    trail: Trail
    detail: dict[str, Any]
    dry_run: bool
    changed: int = 0
    batches: int = 0


class OutboxBulk(OperatorSide):
    """Moves many rows; each batch is one transaction."""

    async def requeue(self, event_ids: Sequence[str], *, actor: str = "unknown") -> int:
        """DEAD to NEW, with no attempts counted."""
        return await self._change(Verb.REQUEUE, event_ids, actor)

    async def release(self, event_ids: Sequence[str], *, actor: str = "unknown") -> int:
        """Leave the rows DEAD, but let their keys go on."""
        return await self._change(Verb.RELEASE, event_ids, actor)

    async def drop(self, event_ids: Sequence[str], *, actor: str = "unknown") -> int:
        """Delete DEAD rows for good."""
        return await self._change(Verb.DROP, event_ids, actor)

    async def _change(self, verb: Verb, event_ids: Sequence[str], actor: str) -> int:
        ids = list(dict.fromkeys(event_ids))
        target = ids[0] if len(ids) == 1 else f"{len(ids)} events"
        trail = Trail(actor=actor, action=f"outbox.{verb}", target=target)
        numbers = await self._numbers(ids)
        only = _only(verb)
        total = 0

        async def apply(connection: AsyncConnection) -> int:
            operations = await self._queue(connection)
            changed = await self._apply(connection, verb, only, chunk)
            if changed:
                await trail.note(connection, changed=total + changed, ids=ids[:_SHOWN])
                await self._announce(connection, operations)
            return changed

        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            total += await self._transact(apply)
            trail.kept()
        return total

    async def _numbers(self, ids: Sequence[str]) -> list[int]:
        """Return the rows' numbers, lowest first: so a key keeps its order from chunk to chunk."""
        numbers: list[int] = []
        async with self._reader.connect() as connection:
            for start in range(0, len(ids), _CHUNK):
                some = OUTBOX.c.id.in_(ids[start : start + _CHUNK])
                numbers += await connection.scalars(select(OUTBOX.c.sequence).where(some))
        return sorted(numbers)

    async def bulk(
        self,
        verb: Verb,
        where: OutboxFilter | None = None,
        *,
        actor: str = "unknown",
        after: int = 0,
        limit: int | None = None,
        rate: float | None = None,
        batch_size: int = _CHUNK,
        dry_run: bool = False,
    ) -> AsyncIterator[Progress]:
        """Apply *verb* to all rows that match, lowest first; yields after each batch."""
        size = _batch_size(batch_size, rate=rate, limit=limit)
        run = await self._begin(Verb(verb), where or OutboxFilter(), actor, after, dry_run)
        run.detail |= {"limit": limit, "rate": rate}
        first = run.span.first
        while True:
            room = size if limit is None else min(size, limit - run.changed)
            changed, done = await self._batch(run, room)
            finished = done >= run.span.last or run.changed == limit
            yield Progress(
                verb=run.verb,
                changed=run.changed,
                batches=run.batches,
                first=first,
                position=done,
                up_to=run.span.last,
                dry_run=dry_run,
                finished=finished,
            )
            if finished:
                return
            run.span = Span(done + 1, run.span.last)
            if rate is not None and not dry_run:
                await asyncio.sleep(changed / rate)

    async def _begin(
        self, verb: Verb, where: OutboxFilter, actor: str, after: int, dry_run: bool
    ) -> _Run:
        status = OutboxStatus.SENT if verb is Verb.REPLAY else OutboxStatus.DEAD
        if where.status not in (None, status):
            raise ConfigurationError(f"{verb} is for {status} events, not for {where.status} ones")
        where = replace(where, status=status)
        async with self._reader.connect() as connection:
            span = await bounds(connection, where)
            now = await connection.scalar(select(type_coerce(self._database.now(), UtcDateTime)))
        only = _only(verb)
        if verb is Verb.REPLAY:
            # What went out again since is not replayed twice, by whomever it was.
            only = and_(only, OUTBOX.c.sent_at <= now)
        return _Run(
            verb=verb,
            where=where,
            only=only,
            span=Span(max(span.first, after + 1), span.last),
            trail=Trail(actor=actor, action=f"outbox.{verb}", target="all that match"),
            detail={"filter": where.as_json(), "after": after, "up_to": span.last},
            dry_run=dry_run,
        )

    async def _batch(self, run: _Run, room: int) -> tuple[int, int]:
        """Change up to *room* rows; return how many, and up to which number all is done."""

        async def work(connection: AsyncConnection) -> tuple[int, int]:
            operations = 0 if run.dry_run else await self._queue(connection)
            window = await next_span(connection, run.span, lanes_of(run.where), size=_WINDOW)
            if window is None:
                return 0, run.span.last
            found = await connection.scalars(
                select(OUTBOX.c.sequence)
                .where(window.condition, run.only, *conditions(run.where))
                .order_by(OUTBOX.c.sequence)
                .limit(room)
            )
            numbers = list(found)
            done = numbers[-1] if len(numbers) == room else window.last
            if run.dry_run or not numbers:
                return len(numbers), done
            changed = await self._apply(connection, run.verb, run.only, numbers)
            await run.trail.note(
                connection,
                **run.detail,
                changed=run.changed + changed,
                batches=run.batches + 1,
                position=done,
            )
            await self._announce(connection, operations)
            return changed, done

        if run.dry_run:
            async with self._reader.connect() as connection:
                changed, done = await work(connection)
        else:
            changed, done = await self._transact(work)
            run.trail.kept()
        run.changed += changed
        run.batches += 1
        return changed, done

    async def _apply(
        self,
        connection: AsyncConnection,
        verb: Verb,
        only: ColumnElement[bool],
        numbers: Sequence[int],
    ) -> int:
        ours = and_(self._database.is_any(OUTBOX.c.sequence, numbers), only)
        statement: Any
        if verb is Verb.DROP:
            statement = delete(OUTBOX).where(ours)
        elif verb is Verb.RELEASE:
            lane = OUTBOX.c.partition_no + DEAD_RELEASED
            statement = update(OUTBOX).where(ours).values(lane=lane)
        else:
            statement = update(OUTBOX).where(ours).values(_AGAIN)
        return int((await connection.execute(statement)).rowcount)


def _only(verb: Verb) -> ColumnElement[bool]:
    """Return the state that a row must be in: whoever comes second finds it in another."""
    if verb is Verb.REPLAY:
        return and_(OUTBOX.c.status == OutboxStatus.SENT.value, OUTBOX.c.lane.is_(None))
    dead = OUTBOX.c.status == OutboxStatus.DEAD.value
    return and_(dead, OUTBOX.c.lane < DEAD_RELEASED) if verb is Verb.RELEASE else dead


def _batch_size(batch_size: int, *, rate: float | None, limit: int | None) -> int:
    if batch_size < 1:
        raise ConfigurationError("batch_size must be at least 1")
    if limit is not None and limit < 1:
        raise ConfigurationError("limit must be at least 1")
    if rate is None:
        return min(batch_size, _WINDOW)
    if not rate > 0:
        raise ConfigurationError("rate must be above 0 events per second")
    return min(batch_size, _WINDOW, ceil(rate))
