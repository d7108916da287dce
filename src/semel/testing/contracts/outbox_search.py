"""What operators may ask the outbox of a storage."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from semel.errors import ConfigurationError, InvalidMessageError
from semel.operations import Count, OutboxFilter, ReasonKind
from semel.protocols import Storage
from semel.relay import Failure
from semel.states import OutboxStatus
from semel.testing.contracts.rows import add, bury, instance, send, unsent

_HOUR = timedelta(hours=1)


class OutboxSearchContract:
    """Give it a fixture `storage` with empty tables."""

    async def test_search_by_each_criterion(self, storage: Storage) -> None:
        """What is not asked for does not matter; several criteria must all hold."""
        [plain] = await add(storage, "orders", event_type="OrderPlaced", key="k")
        [other] = await add(storage, "bills", event_type="BillSent", tenant_id="acme")
        [both] = await add(storage, "orders", aggregate_type="Order", aggregate_id="7")
        await bury(storage, plain)
        await send(storage, other)
        now = datetime.now(UTC)
        for where, expected in (
            (OutboxFilter(), [both, other, plain]),
            (OutboxFilter(status=OutboxStatus.DEAD), [plain]),
            (OutboxFilter(status=OutboxStatus.SENT), [other]),
            (OutboxFilter(status=OutboxStatus.NEW), [both]),
            (OutboxFilter(status=OutboxStatus.FAILED), []),
            (OutboxFilter(topic="orders"), [both, plain]),
            (OutboxFilter(event_type="BillSent"), [other]),
            (OutboxFilter(key="k"), [plain]),
            (OutboxFilter(key="K"), []),
            (OutboxFilter(tenant_id="acme"), [other]),
            (OutboxFilter(aggregate_type="Order", aggregate_id="7"), [both]),
            (OutboxFilter(aggregate_type="Order", aggregate_id="8"), []),
            (OutboxFilter(error="NO ROUTE"), [plain]),
            (OutboxFilter(error="no%route"), []),
            (OutboxFilter(since=now - _HOUR, until=now + _HOUR), [both, other, plain]),
            (OutboxFilter(since=now + _HOUR), []),
            (OutboxFilter(until=now - _HOUR), []),
            (OutboxFilter(topic="orders", tenant_id="acme"), []),
        ):
            page = await storage.outbox.search(where)
            assert (expected, None) == ([record.id for record in page], page.next), where
            assert Count(len(expected)) == await storage.outbox.count(where), where

    async def test_pages_say_where_to_go_on(self, storage: Storage) -> None:
        """Until `next` is None; every row comes once, newest first."""
        added = await add(storage, *"abcde")
        found: list[str] = []
        sizes: list[int] = []
        before: int | None = None
        while True:
            page = await storage.outbox.search(before=before, limit=2)
            found += [record.id for record in page]
            sizes.append(len(page))
            before = page.next
            if before is None:
                break
        assert (added[::-1], [2, 2, 1]) == (found, sizes)

    async def test_counts_are_capped(self, storage: Storage) -> None:
        await add(storage, *"abcde")
        assert Count(5) == await storage.outbox.count(cap=5)
        capped = await storage.outbox.count(cap=3)
        assert (Count(3, capped=True), "3+") == (capped, str(capped))

    async def test_filters_refuse_what_makes_no_sense(self, storage: Storage) -> None:
        now = datetime.now(UTC)
        with pytest.raises(ConfigurationError, match="since"):
            OutboxFilter(since=now, until=now)
        with pytest.raises(ConfigurationError, match="timezone"):
            OutboxFilter(since=now.replace(tzinfo=None))
        with pytest.raises(InvalidMessageError, match="topic"):
            OutboxFilter(topic="a\nb")

    async def test_the_oldest_unsent_row_is_one_that_is_due(self, storage: Storage) -> None:
        """What is scheduled for later is not late, however long it has been there."""
        await add(storage, "later", available_at=datetime.now(UTC) + _HOUR)
        assert (await storage.outbox.stats()).oldest_unsent_seconds is None
        await add(storage, "overdue", available_at=datetime.now(UTC) - _HOUR)
        age = (await storage.outbox.stats()).oldest_unsent_seconds
        assert age is not None
        assert 3500 < age < 3700

    async def test_blocked_keys_say_what_blocks_and_how_many_wait(self, storage: Storage) -> None:
        first, *_ = await add(storage, "a", "b", "c", key="k")
        other, _ = await add(storage, "d", "e", key="k", tenant_id="acme")
        await add(storage, "f", key="free")
        await bury(storage, first, other)
        one, two = await storage.outbox.blocked_keys()
        assert ("default", "k", first, "a", "no route", 1, Count(2)) == (
            one.tenant_id,
            one.key,
            one.event_id,
            one.topic,
            one.error,
            one.dead,
            one.waiting,
        )
        assert one.since is not None
        assert ("acme", other, Count(1)) == (two.tenant_id, two.event_id, two.waiting)
        assert [other] == [k.event_id for k in await storage.outbox.blocked_keys(tenant_id="acme")]
        assert [first] == [k.event_id for k in await storage.outbox.blocked_keys(limit=1)]
        assert 2 == (await storage.outbox.stats()).blocked_keys

    async def test_export_holds_payloads_only_when_asked(self, storage: Storage) -> None:
        """Rows come oldest first, as JSON can hold them."""
        added = await add(storage, "a", "b", "c", metadata={"token": "CANARY"})
        rows = [row async for row in storage.outbox.export(batch_size=2)]
        assert added == [row["id"] for row in rows]
        assert "CANARY" not in json.dumps(rows)
        assert {"payload", "event_metadata"}.isdisjoint(rows[0])
        full = [r async for r in storage.outbox.export(OutboxFilter(topic="b"), payload=True)]
        [row] = json.loads(json.dumps(full))
        assert ({"number": 1}, {"token": "CANARY"}) == (row["payload"], row["event_metadata"])

    async def test_why_tells_how_it_ended(self, storage: Storage) -> None:
        sent, dead, loose = await add(storage, "a", "b", "c", key="k")
        await send(storage, sent)
        await bury(storage, dead)
        await bury(storage, loose, blocks=False)
        assert await storage.outbox.why("unknown") is None
        for event_id, kind, words in (
            (sent, ReasonKind.SENT, "was sent at"),
            (dead, ReasonKind.DEAD, "no route"),
            (dead, ReasonKind.DEAD, "key 'k' waits"),
            (loose, ReasonKind.DEAD, "key 'k' goes on"),
        ):
            why = await storage.outbox.why(event_id)
            assert why is not None
            assert [kind] == [reason.kind for reason in why.reasons]
            assert words in why.sentence
            json.dumps([reason.data for reason in why.reasons])

    async def test_why_tells_what_an_event_waits_for(self, storage: Storage) -> None:
        """Pauses, the schedule, the event that blocks its key, and who should send it."""
        head, behind, third = await add(storage, "a", "b", "c", key="k")
        [later] = await add(storage, "d", available_at=datetime.now(UTC) + _HOUR)
        assert {ReasonKind.NO_PROJECTOR} == await _kinds(storage, head)
        assert {ReasonKind.NO_PROJECTOR, ReasonKind.BEHIND} == await _kinds(storage, behind)
        await bury(storage, head)
        projector = instance("worker:1")
        await storage.relay.heartbeat(projector)
        assert {ReasonKind.NO_OWNER, ReasonKind.SCHEDULED} == await _kinds(storage, later)
        await storage.relay.claim(projector, 64)
        why = await storage.outbox.why(third)
        assert why is not None
        assert [ReasonKind.BLOCKED] == [reason.kind for reason in why.reasons]
        assert head == why.reasons[0].data["event_id"]
        assert head in why.sentence
        await storage.outbox.pause(topic="d", reason="the bank is closed")
        await storage.outbox.pause(tenant_id="acme")
        why = await storage.outbox.why(later)
        assert why is not None
        assert [ReasonKind.PAUSED, ReasonKind.SCHEDULED] == [r.kind for r in why.reasons]
        assert "Topic 'd' is paused" in why.sentence
        assert "the bank is closed" in why.sentence

    async def test_why_tells_of_retries_owners_and_breakers(self, storage: Storage) -> None:
        [event_id] = await add(storage, "a")
        projector = instance("worker:1")
        await storage.relay.heartbeat(projector)
        epochs = {c.partition: c.epoch for c in await storage.relay.claim(projector, 64)}
        why = await storage.outbox.why(event_id)
        assert why is not None
        assert [ReasonKind.DUE] == [reason.kind for reason in why.reasons]
        assert "worker:1" in why.sentence
        [entry] = await unsent(storage)
        failure = Failure(entry=entry, attempts=2, error="too busy", retry_in=60.0)
        await storage.relay.fail(projector, epochs, [failure])
        why = await storage.outbox.why(event_id)
        assert why is not None
        assert [ReasonKind.RETRY] == [reason.kind for reason in why.reasons]
        assert "Attempt 2 failed (too busy)" in why.sentence
        since = "2026-01-02T03:04:05+00:00"
        breaker = {"topic": None, "since": since, "trips": 3, "error": "no such host"}
        other = {"topic": "b", "since": since, "trips": 1, "error": "no such topic"}
        told = instance("worker:1", detail={"breakers": [breaker, other], "lease_seconds": 60.0})
        await storage.relay.heartbeat(told)
        why = await storage.outbox.why(event_id)
        assert why is not None
        assert [ReasonKind.BREAKER, ReasonKind.RETRY] == [reason.kind for reason in why.reasons]
        assert "broker is open since 2026-01-02 03:04:05 UTC: no such host" in why.sentence


async def _kinds(storage: Storage, event_id: str) -> set[ReasonKind]:
    why = await storage.outbox.why(event_id)
    assert why is not None
    return {reason.kind for reason in why.reasons}
