"""Removing what nobody needs any more, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from semel.errors import ConfigurationError
from semel.protocols import Storage

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished rows are kept; None means for ever.

    The inbox protects against a second effect only as long as it remembers: its window must be
    longer than *redelivery_horizon*, for which a message can come again: the longest of the
    broker's retention, of all retries together, and of the time after which operators replay.
    """

    outbox_sent: timedelta | None = timedelta(days=7)
    inbox: timedelta | None = timedelta(days=30)
    redelivery_horizon: timedelta = timedelta(days=7)
    batch_size: int = 10_000

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError("Retention.batch_size must be at least 1")
        for name, span in (("outbox_sent", self.outbox_sent), ("inbox", self.inbox)):
            if span is not None and span <= timedelta(0):
                raise ConfigurationError(f"Retention.{name} must be longer than nothing")
        self.check(self.redelivery_horizon)

    def check(self, redelivery_horizon: timedelta) -> None:
        """Raise `ConfigurationError` if messages can come again after the inbox forgot them."""
        if self.inbox is not None and self.inbox <= redelivery_horizon:
            raise ConfigurationError(
                f"the inbox forgets messages after {_days(self.inbox)}, but they may come again "
                f"for {_days(redelivery_horizon)}: a second effect would be possible. "
                "Keep the inbox longer than that"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """How many rows a clean-up deleted."""

    outbox: int = 0
    inbox: int = 0
    idempotency: int = 0


async def cleanup(
    storage: Storage, retention: Retention | None = None, *, progress: Progress | None = None
) -> Removed:
    """Delete what *retention* does not keep: SENT outbox rows and PROCESSED inbox rows.

    And idempotency keys that have expired, each after the time that it was kept for.

    Every transaction deletes at most `retention.batch_size` rows. *progress* is called with the
    table's name and the number of rows after each table.
    """
    keep = retention or Retention()
    outbox = inbox = 0
    if keep.outbox_sent is not None:
        outbox = await storage.outbox.cleanup(
            older_than=keep.outbox_sent, batch_size=keep.batch_size
        )
        if progress is not None:
            progress("outbox", outbox)
    if keep.inbox is not None:
        inbox = await storage.inbox.cleanup(older_than=keep.inbox, batch_size=keep.batch_size)
        if progress is not None:
            progress("inbox", inbox)
    idempotency = await storage.idempotency.cleanup(batch_size=keep.batch_size)
    if progress is not None:
        progress("idempotency", idempotency)
    return Removed(outbox=outbox, inbox=inbox, idempotency=idempotency)


def _days(span: timedelta) -> str:
    return f"{span.total_seconds() / 86400:g} days"
