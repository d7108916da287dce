"""A handler that runs again: what its first run has emitted is not emitted a second time."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

from semel.serializers import loads_json
from semel.sqlalchemy.rows import NewRow

_CHUNK = 500
_logger = logging.getLogger("semel.outbox")


def unwritten(
    connection: Connection, table: Table, rows: Sequence[NewRow], derived: Collection[str]
) -> list[NewRow]:
    """Return the rows without those whose *derived* ids are in the table.

    Those stay as they are, whatever a second run would write: others know them by their ids.
    """
    wanted = [row.id for row in rows if row.id in derived]
    known: dict[str, Any] = {}
    for start in range(0, len(wanted), _CHUNK):
        columns = table.c["id", "payload", "payload_bytes"]
        chunk = select(*columns).where(table.c.id.in_(wanted[start : start + _CHUNK]))
        known |= {found.id: found for found in connection.execute(chunk)}
    for row in rows:
        if row.id in known and not _same(row, known[row.id]):
            _logger.warning(
                "event %s (%s) was emitted by an earlier run of its handler, with another "
                "payload: that one stays, this one is left out",
                row.id,
                row.event_type,
            )
    return [row for row in rows if row.id not in known]


def _same(row: NewRow, found: Any) -> bool:
    if row.payload is None or found.payload_bytes is not None:
        return bool(row.payload_bytes == found.payload_bytes)
    return bool(loads_json(row.payload) == found.payload)
