"""Claiming a key, waiting for the one who has it, and keeping it while one works."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from semel.clock import SystemClock
from semel.errors import (
    IdempotencyConflictError,
    IdempotencyError,
    IdempotencyMismatchError,
    describe,
)
from semel.failpoints import failpoint
from semel.protocols import Clock, IdempotencyStore
from semel.states import Claim, IdempotencyKey, IdempotencyState, Verdict
from semel.tasks import unbroken

T = TypeVar("T")
_logger = logging.getLogger("semel.idempotency")

_FIRST_LOOK = 0.01
_LONGEST_LOOK = 0.25
# A key whose owner died is not released: it must be asked for.
_ASK_AGAIN = 1.0


async def claim(
    store: IdempotencyStore,
    key: IdempotencyKey,
    *,
    fingerprint: str,
    lease: timedelta,
    keep: timedelta,
    wait: timedelta = timedelta(0),
    session: Any | None = None,
    clock: Clock | None = None,
) -> Claim:
    """Claim *key*; while another call has it, look again for *wait* at most."""
    clock = clock or SystemClock()
    end = clock.monotonic() + wait.total_seconds()
    look = _FIRST_LOOK

    async def ask() -> Claim:
        return await store.claim(
            key, fingerprint=fingerprint, lease=lease, keep=keep, session=session
        )

    found, asked = await ask(), clock.monotonic()
    while found.verdict is Verdict.IN_FLIGHT and (left := end - clock.monotonic()) > 0:
        await clock.sleep(min(look, left))
        look = min(look * 1.5, _LONGEST_LOOK)
        if clock.monotonic() - asked < _ASK_AGAIN and session is None:
            record = await store.get(key)
            if record is not None and record.state == IdempotencyState.STARTED:
                continue
        found, asked = await ask(), clock.monotonic()
    failpoint("idempotency.after_claim")
    return found


def refusal(verdict: Verdict) -> IdempotencyError:
    """Return the error that tells why a key was not claimed and has no answer."""
    if verdict is Verdict.MISMATCH:
        return IdempotencyMismatchError(
            "this idempotency key was used before with another request: take a new key"
        )
    if verdict is Verdict.NOT_KEPT:
        return IdempotencyConflictError(
            "the call with this idempotency key was executed, but its answer was not kept"
        )
    return IdempotencyConflictError(
        "a call with this idempotency key is being executed: try again later"
    )


async def renewing(
    store: IdempotencyStore,
    held: Claim,
    lease: timedelta,
    *,
    wanted: Callable[[], bool] = lambda: True,
    clock: Clock | None = None,
) -> None:
    """Renew the lease until cancelled, as long as it is *wanted*; run this as a task.

    For work outside of a transaction that could be rolled back when the lease is lost.
    """
    clock = clock or SystemClock()
    while True:
        await clock.sleep(lease.total_seconds() / 3)
        try:
            if wanted() and not await unbroken(store.renew(held, lease=lease)):
                return
            failpoint("idempotency.after_renewal")
        except Exception as error:  # noqa: BLE001  the next one may pass
            _logger.warning("the lease of a key was not renewed: %s", describe(error))


async def release(store: IdempotencyStore, held: Claim) -> None:
    """Let the key be used again; if that fails, its lease runs out."""
    try:
        await unbroken(store.release(held.key, token=held.token))
        failpoint("idempotency.after_release")
    except Exception as error:  # noqa: BLE001  the error before it is the one to tell
        _logger.warning("a key was not released, its lease will run out: %s", describe(error))
