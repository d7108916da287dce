"""One message, one transaction: admit, run, complete, commit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import count
from typing import Any, TypeVar

from semel.dead_letters import Reason, dead_letter, dead_letter_topic
from semel.envelope import MessageEnvelope
from semel.errors import describe
from semel.failpoints import failpoint
from semel.hashing import is_document, is_json, message_hash
from semel.logs import fields
from semel.observer import Operation
from semel.protocols import Clock, InboxGate, Observer, Storage, UnitOfWork
from semel.retry import RetryPolicy
from semel.states import Admission, Receipt

T = TypeVar("T")

_logger = logging.getLogger("semel.inbox")

# Deadlocks resolve at the second try; what lasts longer is not for a loop inside a call.
RESTARTS = RetryPolicy(max_attempts=6, base_seconds=0.02, max_seconds=0.5)


class Outcome(StrEnum):
    """What became of a message."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    FAILED = "failed"
    HELD = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxResult:
    """The outcome, and the handler's result or error.

    CONFLICT: the id is known with another payload; the message was parked, not run.
    FAILED and HELD only come from batches: the handler raised *error*, or the message was not
    tried because an earlier one of its key failed.
    """

    outcome: Outcome
    result: Any = None
    error: Exception | None = None


class Phase(Enum):
    """How far an attempt came."""

    ADMISSION = auto()
    HANDLER = auto()
    COMPLETION = auto()


@dataclass(slots=True, kw_only=True)
class Job:
    """One message and what is to be done with it."""

    receipt: Receipt
    message: MessageEnvelope
    run: Callable[[UnitOfWork], Awaitable[Any]]
    phase: Phase = Phase.ADMISSION


def receipt_of(
    message: MessageEnvelope,
    consumer_name: str,
    *,
    handler: str | None = None,
    keep_payload: bool = False,
) -> Receipt:
    """Return what the inbox notes of *message*."""
    text: str | None = None
    if keep_payload and is_json(message.content_type) and is_document(message.body):
        text = message.body.decode()
    return Receipt(
        tenant_id=message.tenant_id,
        consumer_name=consumer_name,
        message_id=message.event_id,
        event_type=message.event_type,
        source=message.topic,
        payload_hash=message_hash(message),
        payload=text,
        handler=handler,
    )


class Processor:
    """Runs jobs of one consumer, each exactly once as far as the database goes."""

    def __init__(
        self,
        storage: Storage,
        consumer_name: str,
        *,
        observer: Observer,
        clock: Clock,
        dead_letter_topic: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = storage
        self.consumer_name = consumer_name
        self._dead_letter_topic = dead_letter_topic
        self._observer = observer
        self._clock = clock
        self._labels = {"consumer_name": consumer_name, **(labels or {})}
        self.outcomes: Counter[Outcome] = Counter()

    async def execute(self, job: Job, *, session: Any | None = None) -> InboxResult:
        """Run one job: in its own transaction, again if that was the database's wish."""
        operation = self._operation(job)
        with self._observer.observe(operation):
            try:
                if session is not None:
                    done = await self._join(job, session)
                else:
                    done = await self._restart([job], lambda: self._once(job))
            except BaseException:
                operation.outcome = "error"
                raise
            operation.outcome = done.outcome.value
            return done

    async def execute_batch(self, jobs: Sequence[Job]) -> list[InboxResult]:
        """Run jobs in one transaction; if that fails, one by one in the given order."""
        if len(jobs) > 1:
            try:
                with self._observer.observe(self._operation(*jobs)):
                    return await self._restart(jobs, lambda: self._all(jobs))
            except Exception as error:  # noqa: BLE001  the blame is found below
                # The one that is to blame will say so again, alone.
                _logger.debug("a batch of %d messages is split: %s", len(jobs), describe(error))
                if self.is_transient(error, *jobs):
                    return [InboxResult(outcome=Outcome.FAILED, error=error) for _ in jobs]
        return await self._each(jobs)

    def is_transient(self, error: BaseException, *jobs: Job) -> bool:
        """Tell whether the database, not a message or its handler, is the cause of *error*."""
        if isinstance(error, OSError) and any(job.phase is Phase.HANDLER for job in jobs):
            return False  # of a connection of the handler's own
        return self._storage.is_transient(error)

    async def _restart(self, jobs: Sequence[Job], attempt: Callable[[], Awaitable[T]]) -> T:
        for number in count(1):
            for job in jobs:
                job.phase = Phase.ADMISSION
            try:
                return await attempt()
            except Exception as error:
                if not self.is_transient(error, *jobs) or RESTARTS.gives_up(number):
                    raise
                _logger.debug("a transaction is started again: %s", describe(error))
                await self._clock.sleep(RESTARTS.delay(number))
        raise AssertionError

    async def _once(self, job: Job) -> InboxResult:
        started = self._clock.monotonic()
        async with self._storage.unit_of_work(
            tenant_id=job.receipt.tenant_id, consumer_name=self.consumer_name, cause=job.message
        ) as uow:
            gate = self._storage.gate(uow)
            [admission] = await gate.admit([job.receipt])
            failpoint("inbox.after_admission")
            done = await self._run(job, uow, gate, admission)
            if done.outcome is Outcome.PROCESSED:
                await gate.complete([job.receipt], duration_ms=self._milliseconds(started))
            if done.outcome is not Outcome.DUPLICATE:
                failpoint("inbox.before_commit")
                await uow.commit()
                failpoint("inbox.after_commit")
        self._report([job], [done], self._clock.monotonic() - started)
        return done

    async def _join(self, job: Job, session: Any) -> InboxResult:
        started = self._clock.monotonic()
        async with self._storage.unit_of_work(
            tenant_id=job.receipt.tenant_id,
            consumer_name=self.consumer_name,
            cause=job.message,
            session=session,
        ) as uow:
            gate = self._storage.gate(uow)
            # Without it a caller who catches the error and commits would keep the inbox row.
            async with gate.savepoint():
                [admission] = await gate.admit([job.receipt])
                done = await self._run(job, uow, gate, admission)
                if done.outcome is Outcome.PROCESSED:
                    await uow.commit()
                    await gate.complete([job.receipt], duration_ms=self._milliseconds(started))
            elapsed = self._clock.monotonic() - started
            gate.after_commit(lambda: self._report([job], [done], elapsed))
        return done

    async def _all(self, jobs: Sequence[Job]) -> list[InboxResult]:
        started = self._clock.monotonic()
        results: list[InboxResult] = []
        # One tenant's, where the database keeps them apart; a mixed batch is then split.
        async with self._storage.unit_of_work(
            tenant_id=jobs[0].receipt.tenant_id, consumer_name=self.consumer_name
        ) as root:
            gate = self._storage.gate(root)
            admissions = await gate.admit([job.receipt for job in jobs])
            failpoint("batch.after_admission")
            for job, admission in zip(jobs, admissions, strict=True):
                async with self._storage.unit_of_work(
                    tenant_id=job.receipt.tenant_id,
                    consumer_name=self.consumer_name,
                    cause=job.message,
                    session=root.session,
                ) as uow:
                    results.append(await self._run(job, uow, gate, admission))
                    await uow.commit()
            new = [
                job.receipt
                for job, done in zip(jobs, results, strict=True)
                if done.outcome is Outcome.PROCESSED
            ]
            await gate.complete(new, duration_ms=self._milliseconds(started))
            failpoint("batch.before_commit")
            await root.commit()
            failpoint("batch.after_commit")
        self._report(jobs, results, (self._clock.monotonic() - started) / len(jobs))
        return results

    async def _each(self, jobs: Sequence[Job]) -> list[InboxResult]:
        results: list[InboxResult] = []
        failed: set[tuple[str, str | None]] = set()
        for index, job in enumerate(jobs):
            key = (job.message.tenant_id, job.message.order_key)
            if key in failed:
                results.append(InboxResult(outcome=Outcome.HELD))
                continue
            try:
                results.append(await self.execute(job))
            except Exception as error:  # noqa: BLE001  handed to the caller in the result
                results.append(InboxResult(outcome=Outcome.FAILED, error=error))
                if self.is_transient(error, job):
                    held = InboxResult(outcome=Outcome.HELD)
                    return results + [held] * (len(jobs) - index - 1)
                if key[1] is not None:
                    failed.add(key)
        return results

    async def _run(
        self, job: Job, uow: UnitOfWork, gate: InboxGate, admission: Admission
    ) -> InboxResult:
        if admission is Admission.DUPLICATE:
            return InboxResult(outcome=Outcome.DUPLICATE)
        if admission is Admission.CONFLICT:
            await gate.bury(
                dead_letter(
                    job.message,
                    topic=self._dead_letter_topic or dead_letter_topic(job.message.topic),
                    consumer_name=self.consumer_name,
                    reason=Reason.CONFLICT,
                    detail="the id was used before with another payload",
                )
            )
            return InboxResult(outcome=Outcome.CONFLICT)
        job.phase = Phase.HANDLER
        with self._storage.lend(uow):
            result = await job.run(uow)
        failpoint("inbox.after_handler")
        job.phase = Phase.COMPLETION
        return InboxResult(outcome=Outcome.PROCESSED, result=result)

    def _report(self, jobs: Sequence[Job], results: Sequence[InboxResult], seconds: float) -> None:
        """Tell the observer what became of *jobs*, each of which took *seconds*."""
        pairs = list(zip(jobs, results, strict=True))
        found = Counter((done.outcome, job.receipt.event_type) for job, done in pairs)
        for (outcome, kind), number in found.items():
            labels = {"consumer_name": self.consumer_name, "event_type": kind}
            if outcome is Outcome.PROCESSED:
                self._observer.count("consumer_inbox_processed_total", number, **labels)
                self._observer.record(
                    "consumer_inbox_processing_duration_seconds", *[seconds] * number, **labels
                )
            elif outcome is Outcome.DUPLICATE:
                self._observer.count("consumer_inbox_duplicates_total", number, **labels)
        for job, done in pairs:
            if done.outcome is Outcome.CONFLICT:
                self.count_parked(Reason.CONFLICT)
                _logger.error(
                    "message %s of %s came again with another payload: parked",
                    job.receipt.message_id,
                    job.receipt.source,
                    extra=fields(job.message, consumer=self.consumer_name, outcome="conflict"),
                )

    def count_parked(self, reason: Reason) -> None:
        """Count a message that was given up or put aside."""
        self._observer.count(
            "consumer_inbox_parked_total", consumer_name=self.consumer_name, reason=reason.value
        )

    def count_error(self, job: Job) -> None:
        """Count a failed attempt of a message."""
        self._observer.count(
            "consumer_handler_errors_total",
            consumer_name=self.consumer_name,
            event_type=job.receipt.event_type,
        )

    def count_trouble(self) -> None:
        """Count a failed attempt for which no message is to blame."""
        self._observer.count("consumer_troubles_total", consumer_name=self.consumer_name)

    def _operation(self, *jobs: Job) -> Operation:
        messages = [job.message for job in jobs]
        return Operation(name="process", messages=messages, labels=self._labels)

    def _milliseconds(self, started: float) -> int:
        return round((self._clock.monotonic() - started) * 1000)
