"""Bulk actions that run on after the answer: progress, cancel, and what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypedDict
from uuid import uuid4

from starlette.exceptions import HTTPException

from semel.errors import describe
from semel.operations import OutboxFilter, Progress, Verb
from semel.protocols import OutboxStore

MAX_RUNNING = 8
_KEPT = 30
_BATCH = 500
_logger = logging.getLogger("semel.dashboard")


class JobShape(TypedDict):
    """A bulk action, as pages and programs see it."""

    id: str
    verb: str
    actor: str
    tenant_id: str | None
    where: dict[str, str]
    state: str
    changed: int
    share: float
    error: str | None
    started_at: str
    finished_at: str | None


@dataclass(slots=True, kw_only=True)
class Job:
    """One bulk action: *running*, then *finished*, *cancelled* or *failed*."""

    verb: Verb
    where: OutboxFilter
    actor: str
    id: str = field(default_factory=lambda: uuid4().hex)
    state: str = "running"
    changed: int = 0
    share: float = 0.0
    error: str | None = None
    cancelled: bool = False
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    finished_at: datetime | None = None

    def shape(self) -> JobShape:
        """Return it JSON-ready."""
        return JobShape(
            id=self.id,
            verb=self.verb.value,
            actor=self.actor,
            tenant_id=self.where.tenant_id,
            where=self.where.as_json(),
            state=self.state,
            changed=self.changed,
            share=round(self.share, 4),
            error=self.error,
            started_at=self.started_at.isoformat(),
            finished_at=None if self.finished_at is None else self.finished_at.isoformat(),
        )


class Jobs:
    """The bulk actions of this process; what a batch has done stays done, whatever happens."""

    def __init__(self, outbox: OutboxStore, *, changed: Callable[[], None]) -> None:
        self._outbox = outbox
        self._changed = changed
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self) -> list[Job]:
        """Return them, the newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> Job | None:
        """Return one, or None."""
        return self._jobs.get(job_id)

    def start(self, verb: Verb, where: OutboxFilter, *, actor: str, limit: int | None) -> Job:
        """Begin; only rows that are there now are touched."""
        if len(self._tasks) >= MAX_RUNNING:
            raise HTTPException(429, "Too many bulk actions run: wait for one, or cancel it.")
        job = Job(verb=verb, where=where, actor=actor)
        self._jobs[job.id] = job
        for old in [each.id for each in self._jobs.values() if each.state != "running"]:
            if len(self._jobs) > _KEPT:
                del self._jobs[old]
        task = asyncio.create_task(self._run(job, limit), name=f"semel-{verb}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def cancel(self, job: Job) -> None:
        """Let it end after the batch that it is at."""
        job.cancelled = True

    async def close(self) -> None:
        """Cancel all and wait for them."""
        for job in self._jobs.values():
            job.cancelled = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, limit: int | None) -> None:
        try:
            steps = self._outbox.bulk(
                job.verb, job.where, actor=job.actor, limit=limit, batch_size=_BATCH
            )
            async with aclosing(steps) as progress:  # type: ignore[type-var]
                async for step in progress:
                    self._note(job, step)
                    if job.cancelled and not step.finished:
                        job.state = "cancelled"
                        break
            if job.state == "running":
                job.state, job.share = "finished", 1.0
        except Exception as error:  # noqa: BLE001  it is told where the job is shown
            job.state, job.error = "failed", describe(error)
            _logger.error("%s of many events failed: %s", job.verb, job.error)
        finally:
            job.finished_at = datetime.now(UTC)
            self._changed()

    def _note(self, job: Job, step: Progress) -> None:
        job.changed = step.changed
        span = step.up_to - step.first
        job.share = 1.0 if span <= 0 else max(0.0, min(1.0, (step.position - step.first) / span))
        self._changed()
