"""One verb for all events that match, with progress and cancel."""

from __future__ import annotations

from typing import Any, TypedDict

from starlette.exceptions import HTTPException

from semel.dashboard.access import Action
from semel.dashboard.calls import Call, missing, optional
from semel.dashboard.jobs import Job, JobShape
from semel.dashboard.stream import visible_jobs
from semel.dashboard.views import outbox
from semel.dashboard.views.base import Body, Deed, Rights, View
from semel.operations import OutboxFilter, Verb

NEEDS = {
    Verb.REQUEUE: Action.REQUEUE,
    Verb.RELEASE: Action.REQUEUE,
    Verb.DROP: Action.DELETE,
    Verb.REPLAY: Action.REPLAY,
}
_TEXTS = ("topic", "event_type", "key", "aggregate_type", "aggregate_id", "error")
_COUNTED = 100_000


class Matching(TypedDict):
    """How many events match; at least that if `capped`."""

    number: int
    capped: bool


class Jobs(TypedDict):
    """The bulk actions of this process."""

    jobs: list[dict[str, Any]]


async def _matching(call: Call) -> Matching:
    found = await call.storage.outbox.count(outbox.where(call), cap=_COUNTED)
    return Matching(number=found.number, capped=found.capped)


async def _jobs(call: Call) -> Jobs:
    return Jobs(jobs=await visible_jobs(call))


def where(body: Body) -> OutboxFilter:
    """Return which events are meant; an unknown name is refused, or it would mean more."""
    asked = body.get("where")
    if not isinstance(asked, dict):
        raise HTTPException(400, "where says which events: at least {}.")
    if unknown := set(asked) - {*_TEXTS, "tenant_id"}:
        raise HTTPException(400, f"where knows {', '.join(_TEXTS)}, not {min(unknown)[:50]}.")
    chosen: dict[str, Any] = {name: optional(asked, name) for name in _TEXTS}
    return OutboxFilter(tenant_id=optional(asked, "tenant_id"), **chosen)


def _limit(body: Body) -> int | None:
    limit = body.get("limit")
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise HTTPException(400, "limit is a number from 1 on.")
    return limit


def _start(verb: Verb) -> Deed:
    async def rights(_call: Call, body: Body) -> Rights:
        return [(NEEDS[verb], where(body).tenant_id)]

    async def do(call: Call, body: Body) -> JobShape:
        job = call.dashboard.jobs.start(
            verb, where(body), actor=call.principal.name, limit=_limit(body)
        )
        return job.shape()

    return Deed(path=f"/api/jobs/{verb.value}", rights=rights, do=do)


async def _find(call: Call, body: Body) -> Job:
    job_id = body.get("id")
    job = call.dashboard.jobs.get(job_id) if isinstance(job_id, str) else None
    if job is None or not await call.may(Action.VIEW, job.where.tenant_id):
        raise missing()
    return job


async def _cancel_rights(call: Call, body: Body) -> Rights:
    job = await _find(call, body)
    return [(NEEDS[job.verb], job.where.tenant_id)]


async def _cancel(call: Call, body: Body) -> JobShape:
    job = await _find(call, body)
    call.dashboard.jobs.cancel(job)
    return job.shape()


VIEWS = (
    View(path="/matching", template="matching.html", read=_matching),
    View(path="/jobs", template="jobs.html", read=_jobs),
)
DEEDS = (
    *(_start(verb) for verb in Verb),
    Deed(path="/api/jobs/cancel", rights=_cancel_rights, do=_cancel),
)
