"""The idempotency table on every database."""

from __future__ import annotations

from semel.testing.contracts.idempotency import IdempotencyStoreContract


class TestIdempotency(IdempotencyStoreContract):
    """With the fixture `storage` of this folder."""
