"""What operators may ask the inbox of a storage, and remove from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.operations import AuditFilter, Count, InboxFilter
from semel.protocols import Storage
from semel.states import InboxStatus
from semel.testing.contracts.inbox import admit, receipt, transaction

_HOUR = timedelta(hours=1)
_ALL = timedelta(seconds=-60)


class InboxSearchContract:
    """Give it a fixture `storage` with empty tables."""

    async def test_search_by_each_criterion(self, storage: Storage) -> None:
        """What is not asked for does not matter; several criteria must all hold."""
        await admit(storage, receipt("m-1"))
        await admit(storage, replace(receipt("m-2"), consumer_name="mail", event_type="Bill"))
        await admit(storage, replace(receipt("m-3"), tenant_id="acme", source="bills"))
        async with transaction(storage) as gate:
            await gate.settle(
                receipt("m-4"), status=InboxStatus.DEAD, attempts=3, reason="no Stock left"
            )
        now = datetime.now(UTC)
        for where, expected in (
            (InboxFilter(), ["m-4", "m-3", "m-2", "m-1"]),
            (InboxFilter(status=InboxStatus.DEAD), ["m-4"]),
            (InboxFilter(consumer_name="mail"), ["m-2"]),
            (InboxFilter(tenant_id="acme"), ["m-3"]),
            (InboxFilter(event_type="Bill"), ["m-2"]),
            (InboxFilter(source="bills"), ["m-3"]),
            (InboxFilter(reason="stock"), ["m-4"]),
            (InboxFilter(reason="st_ck"), []),
            (InboxFilter(since=now - _HOUR, until=now + _HOUR), ["m-4", "m-3", "m-2", "m-1"]),
            (InboxFilter(until=now - _HOUR), []),
            (InboxFilter(consumer_name="mail", status=InboxStatus.DEAD), []),
        ):
            page = await storage.inbox.search(where)
            assert (expected, None) == ([record.message_id for record in page], page.next), where
            assert Count(len(expected)) == await storage.inbox.count(where), where
        assert Count(2, capped=True) == await storage.inbox.count(cap=2)

    async def test_pages_say_where_to_go_on(self, storage: Storage) -> None:
        """Also between records of the same moment; every record comes once."""
        await admit(storage, *(receipt(f"m-{n}") for n in range(5)))
        await admit(storage, replace(receipt("m-0"), tenant_id="acme"))
        found: list[tuple[str, str]] = []
        before: str | None = None
        while True:
            page = await storage.inbox.search(before=before, limit=2)
            found += [(record.tenant_id, record.message_id) for record in page]
            before = page.next
            if before is None:
                break
        assert ("acme", "m-0") == found[0]
        assert {("acme", "m-0"), *(("default", f"m-{n}") for n in range(5))} == set(found)
        assert 6 == len(found)
        for nonsense in ("x", "bm9uc2Vuc2U=", "WyJ4IiwxLDIsM10="):
            with pytest.raises(ConfigurationError, match="next"):
                await storage.inbox.search(before=nonsense)

    async def test_get(self, storage: Storage) -> None:
        await admit(storage, receipt("m-1"))
        record = await storage.inbox.get("m-1", consumer_name="billing")
        assert record is not None
        assert ("a" * 64, "OrderPlaced", 1) == (
            record.payload_hash,
            record.event_type,
            record.attempts,
        )
        assert await storage.inbox.get("m-1", consumer_name="other") is None
        assert await storage.inbox.get("m-1", consumer_name="billing", tenant_id="acme") is None

    async def test_stats_tell_of_repeated_attempts(self, storage: Storage) -> None:
        await admit(storage, receipt("m-1"))
        async with transaction(storage) as gate:
            await gate.settle(receipt("m-2"), status=InboxStatus.DEAD, attempts=3, reason="x")
        [billing] = await storage.inbox.stats()
        assert (1, False) == (billing.redelivered, billing.capped)

    async def test_forgetting_is_written_down(self, storage: Storage) -> None:
        await admit(storage, receipt("m-1"))
        assert not await storage.inbox.forget("m-2", consumer_name="billing", actor="ann")
        assert await storage.inbox.forget("m-1", consumer_name="billing", actor="ann")
        [row] = await storage.audit.search(AuditFilter(action="inbox.forget"))
        assert ("ann", "m-1", {"consumer_name": "billing", "tenant_id": "default"}) == (
            row.actor,
            row.target,
            row.detail,
        )

    async def test_records_are_archived_before_they_are_deleted(self, storage: Storage) -> None:
        """Batch by batch; an archive that fails keeps them."""
        await admit(storage, *(receipt(f"m-{n}") for n in range(5)))
        archived: list[list[str]] = []

        async def archive(rows: Sequence[Any]) -> None:
            json.dumps(rows)
            archived.append([row["message_id"] for row in rows])
            if len(archived) == 2:
                raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await storage.inbox.cleanup(older_than=_ALL, batch_size=2, archive=archive)
        assert Count(3) == await storage.inbox.count()
        assert 3 == await storage.inbox.cleanup(older_than=_ALL, archive=archive)
        assert {f"m-{n}" for n in range(5)} == {*archived[0], *archived[2]}
        assert Count(0) == await storage.inbox.count()
