"""Which partitions are ours, and until when."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any
from uuid import uuid4

from semel.failpoints import failpoint
from semel.protocols import Clock, Observer
from semel.relay import Instance, RelayStore, Standing
from semel.states import Pause
from semel.window import Window

_PARTITIONS = 64
_logger = logging.getLogger("semel.projector")


class Tenure:
    """Keeps a projector's leases: renews, claims its fair share, hands over the surplus.

    The database's clock decides who owns a partition; our own clock, read before the renewal was
    sent, decides when we must stop publishing because a lease may have run out.
    """

    def __init__(
        self,
        store: RelayStore,
        window: Window,
        *,
        scope: str,
        lease_seconds: float,
        suspects: int,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._store = store
        self._window = window
        self._clock = clock
        self._observer = observer
        self._suspects = suspects
        self.instance = _new_instance(scope, lease_seconds)
        self.deadline = 0.0
        self.next_tick = 0.0
        self.waiting_for: str | None = "the first heartbeat"
        self.pauses: tuple[Pause, ...] = ()
        self.operations: int | None = None
        self.changed = False

    def enter(self) -> None:
        """Be somebody else than the process that made this object and forked."""
        if self.instance.detail["pid"] != os.getpid():
            self.instance = _new_instance(self.instance.scope, self.instance.lease_seconds)

    def leave(self) -> None:
        """Hold nothing until the next tick."""
        self.deadline = self.next_tick = 0.0
        self.waiting_for = "being started"
        self._show()

    @property
    def interval(self) -> float:
        """Seconds between heartbeats."""
        return min(self.instance.lease_seconds / 3, 2.0)

    def is_valid(self) -> bool:
        """Tell whether we may publish now."""
        return self._clock.monotonic() < self.deadline

    def epochs(self) -> dict[int, int]:
        """Return what we hold, for fenced writes."""
        return {lane.partition: lane.epoch for lane in self._window.lanes.values()}

    async def tick(self, report: Mapping[str, Any] | None = None) -> None:
        """Renew, claim, hand over; others can read the *report*."""
        started = self._clock.monotonic()
        self.next_tick = started + self.interval
        detail = {**self.instance.detail, **(report or {})}
        standing = await self._store.heartbeat(replace(self.instance, detail=detail))
        failpoint("relay.after_renewal")
        self._check_owned(standing)
        self.deadline = started + self.instance.lease_seconds
        await self._balance(standing)
        self._note(standing)
        self._show()

    def expire(self) -> None:
        """Our clock says that the leases may have run out: hold nothing any more."""
        if self._window.lanes:
            self._observer.count("outbox_lease_lost_total", len(self._window.lanes))
            _logger.warning("leases could not be renewed in time: publishing stops")
            self._window.drop_lanes(list(self._window.lanes))
            self._show()
        self.waiting_for = "the database"

    def _show(self) -> None:
        self._observer.gauge("outbox_leases_held", len(self._window.lanes))

    def _check_owned(self, standing: Standing) -> None:
        lost = [
            lane.partition
            for lane in self._window.lanes.values()
            if standing.leases.get(lane.partition) != lane.epoch
        ]
        if lost:
            self._observer.count("outbox_lease_lost_total", len(lost))
            _logger.warning("%d leases were taken over by another projector", len(lost))
            self._window.drop_lanes(lost)
        for partition, epoch in standing.leases.items():
            if partition not in self._window.lanes:
                # Ours in the table though we gave up on it: nobody else can have published.
                self._window.lanes.add(partition, epoch, suspects=self._suspects)
                self.changed = True

    async def _balance(self, standing: Standing) -> None:
        await self.hand_over()
        owned = [lane for lane in self._window.lanes.values() if not lane.leaving]
        fair = ceil(_PARTITIONS / standing.instances)
        if len(owned) > fair:
            surplus = sorted(owned, key=lambda lane: len(lane.known))[: len(owned) - fair]
            self._window.leave([lane.partition for lane in surplus])
            await self.hand_over()
        elif len(owned) < fair and standing.conflict is None:
            claims = await self._store.claim(self.instance, fair - len(owned))
            failpoint("relay.after_claim")
            for claim in claims:
                suspects = self._suspects if claim.from_dead_owner else 0
                self._window.lanes.add(claim.partition, claim.epoch, suspects=suspects)
                self.changed = True

    async def hand_over(self) -> None:
        """Release the partitions that we leave and that nothing in flight keeps."""
        left = self._window.lanes.left()
        if left:
            failpoint("relay.before_release")
            await self._store.release(self.instance, left)
            failpoint("relay.after_release")
            self._window.drop_lanes(left)

    def _note(self, standing: Standing) -> None:
        if standing.conflict is not None:
            self.waiting_for = (
                f"projectors of scope {standing.conflict!r}, which overlaps {self.instance.scope!r}"
            )
        elif not self._window.lanes:
            self.waiting_for = "a free partition"
        else:
            self.waiting_for = None
        pauses = tuple(standing.pauses)
        if pauses != self.pauses or standing.operations != self.operations:
            self.pauses = pauses
            self.operations = standing.operations
            self.changed = True


def _new_instance(scope: str, lease_seconds: float) -> Instance:
    host, pid = socket.gethostname(), os.getpid()
    return Instance(
        id=f"{host[:100]}:{pid}:{uuid4().hex[:8]}",
        scope=scope,
        lease_seconds=lease_seconds,
        detail={"host": host, "pid": pid, "lease_seconds": lease_seconds},
    )
