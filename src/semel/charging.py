"""Count attempts against events that the broker rejected."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace

from semel.errors import PublishError, describe, redact
from semel.failpoints import failpoint
from semel.logs import fields
from semel.protocols import Clock, Observer
from semel.relay import Entry, Failure, RelayStore
from semel.settings import OutboxProjectorConfig
from semel.states import OutboxStatus
from semel.tenure import Tenure
from semel.window import Window

_logger = logging.getLogger("semel.projector")

#: Events of one key, in order, and what the broker said to the first of them.
Charge = tuple[Sequence[Entry], PublishError]


class Charges:
    """Stores FAILED and DEAD before the key goes on, and moves the rows in the window."""

    def __init__(
        self,
        store: RelayStore,
        window: Window,
        tenure: Tenure,
        *,
        config: OutboxProjectorConfig,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._store = store
        self._window = window
        self._tenure = tenure
        self._config = config
        self._clock = clock
        self._observer = observer
        self.charged = 0

    async def charge(self, charges: Sequence[Charge]) -> None:
        """Count an attempt against the first of each group, durably, before its key goes on."""
        now = self._clock.monotonic()  # the wait begins with the rejection, not when it is stored
        try:
            failures = [self._failure(group[0], error) for group, error in charges]
            failpoint("relay.before_failure")
            written = await self._store.fail(self._tenure.instance, self._tenure.epochs(), failures)
            failpoint("relay.after_failure")
        except BaseException:
            for group, _ in charges:
                self._window.give_back(group)
            raise
        for (group, _), failure in zip(charges, failures, strict=True):
            if group[0].sequence in written:
                self._after_failure(group, failure, now)
            else:
                # Another projector owns it now, or it is SENT or gone after all.
                self._observer.count("outbox_lease_lost_total")
                self._window.recall(group)
                self._tenure.changed = True

    async def survived(self, entry: Entry, error: BaseException) -> None:
        """Take back an attempt that was counted in case the process died of it."""
        failure = Failure(entry=entry, attempts=entry.attempts, error=describe(error), retry_in=0.0)
        await self._store.fail(self._tenure.instance, self._tenure.epochs(), [failure])
        entry.status = OutboxStatus.FAILED

    def is_deadly(self, entry: Entry) -> bool:
        """Tell whether processes died of *entry* so often that it must not be tried again."""
        return entry.status == OutboxStatus.PUBLISHING and self._config.retry_for(
            entry.envelope.topic
        ).gives_up(entry.attempts)

    def crash_delay(self, entry: Entry) -> float:
        """Return how long *entry* waits if the process dies of the attempt that begins now."""
        policy = replace(self._config.retry_for(entry.envelope.topic), jitter=False)
        return policy.delay(entry.attempts + 1)

    def _failure(self, entry: Entry, error: PublishError) -> Failure:
        topic = entry.envelope.topic
        policy = self._config.retry_for(topic)
        attempts = entry.attempts + 1
        dead = error.kind == "permanent" or policy.gives_up(attempts)
        text = describe(error)
        self._observer.count("outbox_publish_failures_total", 1, **{"class": error.kind})
        return Failure(
            entry=entry,
            attempts=attempts,
            error=text,
            retry_in=None if dead else policy.delay(attempts),
            blocks=dead and entry.key is not None and self._config.blocks(topic),
            dead_letter=_dead_letter(error, text, self._clock) if dead else None,
        )

    def _after_failure(self, group: Sequence[Entry], failure: Failure, now: float) -> None:
        head, *rest = group
        if failure.retry_in is not None:
            self._observer.count("outbox_retries_total", topic=head.envelope.topic)
            head.attempts = failure.attempts
            head.status = OutboxStatus.FAILED
            self._window.delay(group, now + failure.retry_in)
            return
        envelope = head.envelope
        self._observer.count("outbox_died_total", topic=envelope.topic)
        _logger.error(
            "event %s of topic %s is DEAD after %d attempts: %s",
            envelope.event_id,
            envelope.topic,
            failure.attempts,
            failure.error,
            extra=fields(envelope, outcome="dead", attempts=failure.attempts),
        )
        self._window.settle(head)
        if head.key is None:
            return
        if failure.blocks:
            self._window.block(head.key, rest)
        else:
            self._window.free(head.key)
            self._window.give_back(rest)


def _dead_letter(error: PublishError, text: str, clock: Clock) -> dict[str, str]:
    return {
        "reason": error.kind,
        "exception": text,
        "stack": redact("".join(_frames(error)))[-4000:],
        "occurred_at": clock.now().isoformat(),
    }


def _frames(error: BaseException) -> Iterator[str]:
    """Where it was raised, and what caused it; of the texts, which may hold a payload, one line."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _frames(cause)
    yield from traceback.format_tb(error.__traceback__)
    yield f"{describe(error)}\n"
