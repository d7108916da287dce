"""Keys of calls that must happen once, and the answers that they got."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from semel.operations import Page
    from semel.sqlalchemy.tables import IdempotencyRecord
    from semel.states import Answer, Claim, IdempotencyKey, IdempotencyState


class IdempotencyStore(Protocol):
    """STARTED (leased) to COMPLETED (answer kept) or COMMITTED (effects durable, no answer).

    Times are those of the database's clock. With *session* a call is part of that session's
    transaction; otherwise it is a transaction of its own.
    """

    async def claim(
        self,
        key: IdempotencyKey,
        *,
        fingerprint: str,
        lease: timedelta,
        keep: timedelta,
        session: Any | None = None,
    ) -> Claim:
        """Claim the key for *lease*; of any number of concurrent calls one gets CLAIMED.

        A known key tells: MISMATCH if it came with another fingerprint, COMPLETED with its
        answer, IN_FLIGHT while its lease runs, NOT_KEPT if it is COMMITTED and its lease is over.
        A STARTED key whose lease is over is taken over with a new token; a COMMITTED one never.
        A key that has expired is as good as unknown.
        With *session* nobody sees the key before the commit, and a rollback forgets it; others
        with the same key wait for the outcome.
        """

    async def renew(self, claim: Claim, *, lease: timedelta) -> bool:
        """Begin the lease anew; False if the key is no longer ours."""

    async def complete(
        self,
        claim: Claim,
        answer: Answer | None,
        *,
        keep: timedelta,
        session: Any | None = None,
    ) -> None:
        """Keep the answer for *keep*; without one the key is COMMITTED.

        Raises `IdempotencyConflictError`, and changes nothing, if the key was taken over: the
        transaction must be rolled back.
        """

    async def release(
        self, key: IdempotencyKey, *, token: str | None = None, actor: str | None = None
    ) -> bool:
        """Forget the key, so that it may be used again; False if there was nothing to forget.

        With *token* only while it is STARTED under it. Without, as operators do, in any state;
        what an *actor* forgets is in the audit.
        """

    async def get(self, key: IdempotencyKey) -> IdempotencyRecord | None:
        """Return the row, or None."""

    async def search(
        self,
        *,
        tenant_id: str | None = None,
        principal: str | None = None,
        route: str | None = None,
        state: IdempotencyState | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Page[IdempotencyRecord, str]:
        """Newest first, at most 1,000; page on with *before* = `next` of the page until None."""

    async def cleanup(
        self,
        *,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete expired rows, in transactions of at most *batch_size*.

        A row that has not expired is never deleted. *progress* is told after each transaction how
        many are gone; what it raises ends the clean-up there.
        """
