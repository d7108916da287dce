"""Which projectors run, and which partitions each may publish."""

from __future__ import annotations

from typing import Any, TypedDict

from starlette.exceptions import HTTPException

from semel.dashboard.access import Action
from semel.dashboard.calls import Call, optional
from semel.dashboard.views import shapes
from semel.dashboard.views.base import Body, Deed, Rights, View
from semel.operations import Lease, Worker


class Projectors(TypedDict):
    """Projectors, and leases by scope."""

    workers: list[dict[str, Any]]
    scopes: dict[str, list[dict[str, Any]]]


async def read(call: Call) -> Projectors:
    """Return who runs and who owns what."""
    workers = await call.storage.workers.workers()
    scopes: dict[str, list[dict[str, Any]]] = {}
    for lease in await call.storage.workers.leases():
        scopes.setdefault(lease.scope, []).append(_lease(lease))
    return Projectors(workers=[shapes.clean(_worker(worker)) for worker in workers], scopes=scopes)


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "scope": worker.scope,
        "host": worker.host,
        "pid": worker.pid,
        "is_alive": worker.is_alive,
        "started_at": shapes.moment(worker.started_at),
        "heartbeat_at": shapes.moment(worker.heartbeat_at),
        "heartbeat_seconds": worker.heartbeat_seconds,
        "partitions": list(worker.partitions),
        "published": worker.published,
        "published_per_second": worker.published_per_second,
        "failed": worker.failed,
        "waiting_for": worker.waiting_for,
        "breakers": [
            {
                "topic": breaker.topic,
                "since": shapes.moment(breaker.since),
                "trips": breaker.trips,
                "error": breaker.error,
            }
            for breaker in worker.breakers
        ],
    }


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "partition": lease.partition,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "is_held": lease.is_held,
        "expires_seconds": lease.expires_seconds,
    }


async def _rights(_call: Call, _body: Body) -> Rights:
    return [(Action.PAUSE, None)]


async def _release(call: Call, body: Body) -> dict[str, int]:
    owner, partition = optional(body, "owner"), body.get("partition")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise HTTPException(400, "partition is a number.")
    released = await call.storage.workers.release_leases(
        owner=owner,
        partition=partition,
        scope=optional(body, "scope") or "*",
        actor=call.principal.name,
    )
    return {"released": released}


VIEWS = (View(path="/projectors", template="projectors.html", read=read, whole=True),)
DEEDS = (Deed(path="/api/leases/release", rights=_rights, do=_release),)
