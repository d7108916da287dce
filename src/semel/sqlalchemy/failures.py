"""Write FAILED and DEAD, for many events with few round trips."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, cast

from sqlalchemy import ColumnElement, Float, Table, Text, Update, bindparam, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.relay import Failure
from semel.sqlalchemy.dialects import Database
from semel.sqlalchemy.layout import DEAD_BLOCKING, DEAD_RELEASED, HOT
from semel.sqlalchemy.tables import OutboxRecord
from semel.states import OutboxStatus

_outbox = cast("Table", OutboxRecord.__table__)
_FINISHED = (OutboxStatus.SENT.value, OutboxStatus.DEAD.value)


class FailureStatements:
    """Three statements, however many events failed; compiled once."""

    def __init__(self, database: Database) -> None:
        later = database.later(bindparam("retry_in", type_=Float))
        letter = database.document(bindparam("letter", type_=Text))
        mark = _mark(database.now())
        self._put_off = mark.values(retry_after=later, dead_letter=null())
        self._bury = mark.values(retry_after=null(), dead_letter=letter)

    async def store(
        self, connection: AsyncConnection, failures: Sequence[Failure]
    ) -> Collection[int]:
        """Write those whose rows are unfinished, and return their numbers."""
        # Locked first: a driver that takes many sets of values at once does not tell which matched.
        found = await connection.scalars(
            select(_outbox.c.sequence)
            .where(
                _outbox.c.sequence.in_([failure.entry.sequence for failure in failures]),
                _outbox.c.status.not_in(_FINISHED),
            )
            .with_for_update()
        )
        unfinished = set(found)
        ours = [failure for failure in failures if failure.entry.sequence in unfinished]
        for statement, dead in ((self._put_off, False), (self._bury, True)):
            values = [_values(each) for each in ours if (each.retry_in is None) is dead]
            if values:
                await connection.execute(statement, values)
        return unfinished


def _mark(now: ColumnElement[Any]) -> Update:
    return (
        update(_outbox)
        .where(_outbox.c.sequence == bindparam("number"))
        .values(
            status=bindparam("new_status"),
            retry_count=bindparam("attempts"),
            error_message=bindparam("error"),
            last_attempt_at=now,
            lane=bindparam("new_lane"),
        )
    )


def _values(failure: Failure) -> dict[str, Any]:
    values: dict[str, Any] = {
        "number": failure.entry.sequence,
        "new_status": failure.status.value,
        "attempts": failure.attempts,
        "error": failure.error,
    }
    if failure.retry_in is not None:
        return {**values, "new_lane": failure.entry.partition + HOT, "retry_in": failure.retry_in}
    lane = failure.entry.partition + (DEAD_BLOCKING if failure.blocks else DEAD_RELEASED)
    letter = json.dumps(failure.dead_letter) if failure.dead_letter else None
    return {**values, "new_lane": lane, "letter": letter}
