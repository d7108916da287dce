"""A DEAD event with another payload is another event, at the same place."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import ColumnElement, Row, Text, insert, literal, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from semel.envelope import check_metadata, new_event_id
from semel.errors import ConfigurationError, PayloadTooLargeError, StorageError
from semel.serializers import JSON, JsonSerializer
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.layout import DEAD_RELEASED, PARKED
from semel.sqlalchemy.operator_side import OperatorSide
from semel.sqlalchemy.outbox_scan import OUTBOX
from semel.sqlalchemy.types import Name
from semel.states import OutboxStatus

EDITED_FROM = "edited_from"


class OutboxEditor(OperatorSide):
    """Replaces events."""

    _limit: int

    async def edit_and_requeue_as_new(
        self, event_id: str, payload: Any, *, actor: str = "unknown"
    ) -> str:
        """Replace a DEAD event by a new one with another payload; return the new id."""
        new_id = new_event_id()
        trail = Trail(actor=actor, action="outbox.edit", target=event_id)

        async def work(connection: AsyncConnection) -> None:
            operations = await self._queue(connection)
            found = await connection.execute(
                select(OUTBOX).where(OUTBOX.c.id == event_id).with_for_update()
            )
            row = found.one_or_none()
            if row is None or row.status != OutboxStatus.DEAD:
                state = "is not there" if row is None else f"is {row.status}"
                raise StorageError(f"event {event_id!r} {state}: only a DEAD event can be edited")
            values = self._values(row, payload)
            place = OUTBOX.c.sequence == row.sequence
            await connection.execute(update(OUTBOX).where(place).values(id=new_id))
            await connection.execute(_copy(event_id, row.sequence, self._database.now()))
            await connection.execute(update(OUTBOX).where(place).values(values))
            created = row.created_at.isoformat()
            await trail.note(connection, new_id=new_id, created_at=created)
            await self._announce(connection, operations)

        await self._transact(work)
        return new_id

    def _values(self, row: Row[Any], payload: Any) -> dict[str, Any]:
        metadata = {**(row.event_metadata or {}), EDITED_FROM: row.id}
        check_metadata(metadata)
        values: dict[str, Any] = {
            "event_metadata": json.dumps(metadata, separators=(",", ":"), ensure_ascii=False),
            "status": OutboxStatus.NEW.value,
            "retry_count": 0,
            "retry_after": null(),
            "error_message": null(),
            "dead_letter": null(),
            "last_attempt_at": null(),
            "lane": OUTBOX.c.partition_no + PARKED,
        }
        if row.payload_bytes is None and row.content_type == JSON:
            body = JsonSerializer().dumps(payload)
            values["payload"] = self._database.document(literal(body.decode(), Text))
        elif isinstance(payload, bytes):
            body = values["payload_bytes"] = payload
        else:
            raise ConfigurationError(
                f"this event is {row.content_type}: give the new payload as bytes"
            )
        if len(body) > self._limit:
            raise PayloadTooLargeError(
                f"the payload is {len(body)} bytes, the limit is {self._limit}"
            )
        return values


def _copy(event_id: str, number: int, now: ColumnElement[Any]) -> Any:
    """Insert the row again under its old id, verbatim, DEAD and out of its key's way."""
    replaced = {
        "id": literal(event_id, Name(255)),
        "created_at": now,  # times rise with numbers: searches by time rely on it
        "lane": OUTBOX.c.partition_no + DEAD_RELEASED,
    }
    names = [column.name for column in OUTBOX.c if column.name != "sequence"]
    copied = [replaced.get(name, OUTBOX.c[name]) for name in names]
    return insert(OUTBOX).from_select(names, select(*copied).where(OUTBOX.c.sequence == number))
