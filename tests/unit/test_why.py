"""Why an event is where it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from semel.operations import Lease, ReasonKind, Worker
from semel.operations.why import Facts, Other, explain
from semel.states import OutboxStatus, Pause

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def _worker(name: str = "host:1", *, silent: float = 1.0, scope: str = "*", **more: Any) -> Worker:
    return Worker(
        id=name,
        scope=scope,
        host="host",
        pid=1,
        started_at=NOON,
        heartbeat_at=NOON,
        heartbeat_seconds=silent,
        lease_seconds=30.0,
        **more,
    )


def _lease(owner: str | None = "host:1", *, left: float = 20.0, scope: str = "*") -> Lease:
    return Lease(
        scope=scope, partition=7, owner=owner, epoch=3, expires_at=NOON, expires_seconds=left
    )


def _facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "event_id": "e",
        "tenant_id": "default",
        "topic": "orders",
        "key": "k",
        "partition": 7,
        "status": OutboxStatus.NEW,
        "leases": [_lease()],
        "workers": [_worker()],
    }
    return Facts(**(values | changes))


def _kinds(facts: Facts) -> list[ReasonKind]:
    return [reason.kind for reason in explain(facts).reasons]


def test_an_event_that_nothing_holds_is_due():
    why = explain(_facts())
    assert [ReasonKind.DUE] == [reason.kind for reason in why.reasons]
    assert (
        "It is due, and host:1, heard of at 2026-01-02 12:00:00 UTC, will send it next."
        == why.sentence
    )


def test_an_attempt_that_lasts_is_in_flight():
    facts = _facts(status=OutboxStatus.PUBLISHING, last_attempt_at=NOON)
    assert "host:1 is publishing it since 2026-01-02 12:00:00 UTC" in explain(facts).sentence
    assert [ReasonKind.IN_FLIGHT] == _kinds(facts)


def test_an_owner_that_fell_silent_is_named():
    """Whether its row is old or gone; the lease says when others may begin."""
    for workers in ([_worker(silent=45.0)], []):
        facts = _facts(workers=workers)
        assert [ReasonKind.OWNER_SILENT] == _kinds(facts)[:1]
        assert "belongs to host:1" in explain(facts).sentence


def test_projectors_of_other_tenants_do_not_count():
    facts = _facts(workers=[_worker(scope="acme")], leases=[_lease(scope="acme")])
    assert [ReasonKind.NO_PROJECTOR] == _kinds(facts)
    facts = _facts(tenant_id="acme", workers=[_worker(scope="acme")], leases=[_lease(scope="acme")])
    assert [ReasonKind.DUE] == _kinds(facts)


def test_an_expired_lease_is_nobodys():
    facts = _facts(leases=[_lease(left=-1.0)], workers=[_worker(waiting_for="the database")])
    assert [ReasonKind.NO_OWNER] == _kinds(facts)
    assert "host:1 waits for the database" in explain(facts).sentence


def test_only_pauses_that_concern_the_event_are_told():
    pauses = [Pause(topic="bills"), Pause(tenant_id="acme")]
    assert [ReasonKind.DUE] == _kinds(_facts(pauses=pauses))
    everything = _facts(pauses=[*pauses, Pause(since=NOON, reason="upgrade")])
    assert "Everything is paused since 2026-01-02 12:00:00 UTC (upgrade)." in (
        explain(everything).sentence
    )


def test_several_reasons_come_in_the_order_to_look_at_them():
    other = Other(event_id="first", status=OutboxStatus.DEAD, since=NOON, error="no route")
    facts = _facts(pauses=[Pause(topic="orders")], blocker=other, workers=[], leases=[])
    assert [ReasonKind.PAUSED, ReasonKind.BLOCKED, ReasonKind.NO_PROJECTOR] == _kinds(facts)
    assert "blocked behind event first" in explain(facts).sentence


def test_what_has_ended_needs_no_other_reason():
    """Even while everything is paused and nobody runs."""
    facts = _facts(status=OutboxStatus.SENT, sent_at=NOON, pauses=[Pause()], workers=[], leases=[])
    assert "It was sent at 2026-01-02 12:00:00 UTC." == explain(facts).sentence
