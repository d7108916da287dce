"""Values as `--json` prints them; `docs/reference/cli.md` describes each.

Rows of the outbox and the inbox are those of exports: `semel.operations.rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.cli.terminal import plain

if TYPE_CHECKING:
    from semel.operations import Lease, Worker
    from semel.sqlalchemy.tables import IdempotencyRecord

_CALL = (
    "key_hash",
    "key_prefix",
    "tenant_id",
    "principal",
    "method",
    "route",
    "state",
    "status_code",
    "created_at",
    "completed_at",
    "locked_until",
    "expires_at",
)


def call(record: IdempotencyRecord, *, payload: bool = False) -> dict[str, Any]:
    """Return an idempotency row; the answer only on request."""
    shape = {name: plain(getattr(record, name)) for name in _CALL}
    if payload:
        shape["headers"] = plain(record.headers)
        shape["body"] = plain(record.body)
    return shape


def worker(found: Worker) -> dict[str, Any]:
    """Return a running projector."""
    return {**plain(found), "is_alive": found.is_alive}


def lease(found: Lease) -> dict[str, Any]:
    """Return a lease."""
    return {**plain(found), "is_held": found.is_held}
