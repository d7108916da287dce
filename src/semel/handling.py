"""What a consumer does with a delivery: run it, try again, give it up; then acknowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from semel.binding import InvalidPayloadError
from semel.dead_letters import Reason, dead_letter, raw_letter
from semel.dispatch import Item, Turns, Verdict
from semel.envelope import DEFAULT_TENANT, MessageEnvelope
from semel.errors import describe
from semel.failpoints import failpoint
from semel.logs import fields
from semel.processing import Job, Outcome, Phase, Processor, receipt_of
from semel.protocols import Storage, UnitOfWork
from semel.retry import RetryPolicy
from semel.states import InboxStatus, Receipt

_logger = logging.getLogger("semel.consumer")

# Trouble with the database says nothing about the message: it waits, and nothing is counted.
TROUBLE = RetryPolicy(max_attempts=1, base_seconds=0.1, max_seconds=10.0)
# A message that has trouble this often while the database answers is trouble itself.
STUBBORN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a consumer wants of its messages."""

    name: str
    dead_letter_topic: str
    retry: RetryPolicy
    keep_payload: bool
    run: Callable[[MessageEnvelope, UnitOfWork], Awaitable[Any]]
    handler_name: Callable[[str], str | None]
    on_processed: Callable[[], None]
    on_error: Callable[[], None]
    on_outage: Callable[[], Awaitable[None]]


class Handling:
    """Takes items to their end, one by one or in batches."""

    def __init__(self, storage: Storage, processor: Processor, plan: Plan) -> None:
        self._storage = storage
        self._processor = processor
        self._plan = plan
        self._turns = Turns()

    async def work(self, items: Sequence[Item]) -> None:
        """Deal with *items*; each is done afterwards, or has to wait."""
        for item in items:
            item.wait = 0.0
        try:
            if len(items) > 1:
                await self._batch(items)
            for item in items:
                if len(items) == 1 or item.verdict is not None:
                    await self._single(item)
        except Exception as error:  # noqa: BLE001  not acked, so it is tried again
            for item in items:
                if not item.done:
                    await self._troubled(item, error)

    async def _batch(self, items: Sequence[Item]) -> None:
        jobs = [self._job(item) for item in items]
        async with self._turns.together():
            results = await self._processor.execute_batch(jobs)
        for item, job, result in zip(items, jobs, results, strict=True):
            if result.error is not None:
                await self._failed(item, job, result.error)
            elif result.outcome is not Outcome.HELD:
                await self._succeeded(item)

    async def _single(self, item: Item) -> None:
        if item.verdict is None and not item.ignored:
            await self._attempt(item)
        if item.verdict is not None:
            await self._settle(item, item.verdict)
        if item.verdict is not None or item.ignored:
            await self._ack(item)

    async def _attempt(self, item: Item) -> None:
        job = self._job(item)
        async with self._turns.together():
            if await self._begin(item, job.receipt, beside_others=True):
                await self._execute(item, job)
                return
        if item.verdict is not None:
            return
        # What was begun before and did not end may have killed the process. Nothing else runs
        # beside it now: only the guilty one is counted.
        async with self._turns.alone():
            if await self._begin(item, job.receipt, beside_others=False):
                await self._execute(item, job)

    async def _begin(self, item: Item, receipt: Receipt, *, beside_others: bool) -> bool:
        """Count a redelivered message, before its handler runs; False if that must not run."""
        if item.delivery.attempt <= 1:
            return True
        most = 1 if beside_others and not item.counted else None
        if (begun := await self._count(receipt, most=most)) is None:
            return False
        item.counted = True
        item.failures = begun - 1
        if not self._plan.retry.gives_up(item.failures):
            return True
        item.verdict = Verdict(
            status=InboxStatus.DEAD,
            reason=Reason.CRASHED,
            detail=f"{item.failures} attempts did not come to an end",
            attempts=item.failures,
        )
        return False

    async def _execute(self, item: Item, job: Job) -> None:
        try:
            await self._processor.execute(job)
        except Exception as error:  # noqa: BLE001  a handler may raise anything
            await self._failed(item, job, error)
        else:
            await self._succeeded(item)

    async def _succeeded(self, item: Item) -> None:
        self._plan.on_processed()
        await self._ack(item)

    async def _failed(self, item: Item, job: Job, error: Exception) -> None:
        if job.phase is Phase.ADMISSION:
            await self._troubled(item, error)
            return
        if self._processor.is_transient(error, job) and item.restarts < STUBBORN:
            item.restarts += 1
            await self._troubled(item, error)
            return
        item.failures += 1
        self._processor.count_error(job)
        self._plan.on_error()
        if isinstance(error, InvalidPayloadError):
            item.verdict = self._dead(item, Reason.INVALID, error)
        elif self._plan.retry.gives_up(item.failures):
            item.verdict = self._dead(item, Reason.FAILED, error)
        else:
            item.wait = self._plan.retry.delay(item.failures)
        _logger.log(
            logging.ERROR if item.verdict else logging.WARNING,
            "%s: attempt %d of message %s (%s) failed, %s: %s",
            self._plan.name,
            item.failures,
            job.receipt.message_id,
            job.receipt.event_type,
            "given up" if item.verdict else f"next in {item.wait:.1f} s",
            describe(error),
            extra=fields(
                job.message,
                consumer=self._plan.name,
                outcome="dead" if item.verdict else "retry",
                attempts=item.failures,
            ),
        )

    def _dead(self, item: Item, reason: Reason, error: Exception) -> Verdict:
        return Verdict(
            status=InboxStatus.DEAD,
            reason=reason,
            detail=describe(error),
            attempts=item.failures,
        )

    async def _troubled(self, item: Item, error: Exception) -> None:
        item.trouble += 1
        item.wait = max(0.01, TROUBLE.delay(item.trouble))
        self._processor.count_trouble()
        self._plan.on_error()
        if item.trouble & (item.trouble - 1) == 0:  # at 1, 2, 4, 8 ...
            _logger.warning(
                "%s: trouble that is not the message's, nothing is counted: %s",
                self._plan.name,
                describe(error),
                extra=fields(item.message, consumer=self._plan.name, outcome="trouble"),
            )
        await self._plan.on_outage()

    async def _count(self, receipt: Receipt, *, most: int | None) -> int | None:
        """Return how often the message was begun, this time included.

        None, and nothing counted, if that is more than *most*.
        """
        async with self._transaction(receipt.tenant_id) as uow:
            attempts = await self._storage.gate(uow).attempts(receipt, add=1)
            if most is not None and attempts > most:
                return None
            await uow.commit()
            failpoint("consumer.after_count")
        return attempts

    async def _settle(self, item: Item, verdict: Verdict) -> None:
        """Write the end of the message and its dead letter with one transaction."""
        plan, message = self._plan, item.message
        tenant_id = DEFAULT_TENANT if message is None else message.tenant_id
        async with self._transaction(tenant_id) as uow:
            gate = self._storage.gate(uow)
            if message is None:
                letter = raw_letter(
                    item.delivery.wire,
                    topic=plan.dead_letter_topic,
                    consumer_name=plan.name,
                    reason=verdict.reason,
                    detail=verdict.detail,
                )
            else:
                letter = dead_letter(
                    message,
                    topic=plan.dead_letter_topic,
                    consumer_name=plan.name,
                    reason=verdict.reason,
                    detail=verdict.detail,
                    attempts=verdict.attempts,
                )
                settled = await gate.settle(
                    self._receipt(message),
                    status=verdict.status,
                    attempts=verdict.attempts,
                    reason=f"{verdict.reason.value}: {verdict.detail}",
                )
                if not settled:
                    return  # another instance has processed it meanwhile
            await gate.bury(letter)
            failpoint("consumer.before_burial")
            await uow.commit()
            failpoint("consumer.after_burial")
        self._processor.count_parked(verdict.reason)

    async def _ack(self, item: Item) -> None:
        item.done = True
        try:
            failpoint("consumer.before_ack")
            await item.delivery.ack()
            failpoint("consumer.after_ack")
        except Exception as error:  # noqa: BLE001  it comes again, and is a duplicate then
            _logger.warning(
                "%s: acknowledging failed: %s",
                self._plan.name,
                describe(error),
                extra=fields(item.message, consumer=self._plan.name),
            )

    def _transaction(self, tenant_id: str) -> UnitOfWork:
        return self._storage.unit_of_work(tenant_id=tenant_id, consumer_name=self._plan.name)

    def _job(self, item: Item) -> Job:
        message = item.message
        assert message is not None
        return Job(
            receipt=self._receipt(message),
            message=message,
            run=lambda uow: self._run(message, uow),
        )

    async def _run(self, message: MessageEnvelope, uow: UnitOfWork) -> Any:
        try:
            return await self._plan.run(message, uow)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody stops us: the handler let the end of something of its own escape.
            raise RuntimeError("the handler raised CancelledError") from None

    def _receipt(self, message: MessageEnvelope) -> Receipt:
        return receipt_of(
            message,
            self._plan.name,
            handler=self._plan.handler_name(message.event_type),
            keep_payload=self._plan.keep_payload,
        )
