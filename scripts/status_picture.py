#!/usr/bin/env python3
"""Draw docs/images/status.svg: the screen of `semel status`, with figures of a bad day."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from semel.cli.status import Snapshot
from semel.operations import BlockedKey, BreakerState, Count, Lease, Worker
from semel.states import InboxStats, InboxStatus, OutboxStats, OutboxStatus, Pause

IMAGE = Path(__file__).parents[1] / "docs/images/status.svg"
NOW = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)


def worker(name: str, first: int, published: int, rate: float, **options: object) -> Worker:
    return Worker(
        id=name,
        scope="*",
        host=name.partition("/")[0],
        pid=17,
        started_at=NOW,
        heartbeat_at=NOW,
        heartbeat_seconds=0.6,
        lease_seconds=30.0,
        partitions=range(first, first + 32),
        published=published,
        published_per_second=rate,
        **options,  # type: ignore[arg-type]
    )


def snapshot() -> Snapshot:
    counts = {"NEW": 412, "PUBLISHING": 8, "SENT": 1_048_221, "FAILED": 3, "DEAD": 1}
    mails = BreakerState(
        topic="mails", since=NOW, trips=4, error="UnknownTopicOrPartition: topic not found"
    )
    return Snapshot(
        outbox=OutboxStats(
            counts={OutboxStatus(name): number for name, number in counts.items()},
            oldest_unsent_seconds=48.2,
            blocked_keys=1,
            scheduled=20,
            parked=14,
            capped=frozenset({"SENT"}),
        ),
        blocked=[
            BlockedKey(
                tenant_id="default",
                key="customer-1871",
                event_id="01a1e211-8c3b-7445-8739-49b71f3032e9",
                topic="orders",
                since=NOW,
                error="MessageSizeTooLarge",
                dead=1,
                waiting=Count(14),
            )
        ],
        pauses=[Pause(topic="invoices", since=NOW, reason="new tax rates at noon")],
        workers=[
            worker("shop-7d9f/17", 0, 524_100, 812.5, breakers=[mails]),
            worker("shop-8c2a/17", 32, 523_977, 797.0),
        ],
        leases=[
            Lease(scope="*", partition=n, owner="x", epoch=1, expires_at=NOW, expires_seconds=20.0)
            for n in range(64)
        ],
        consumers=[
            InboxStats(
                consumer_name=name,
                counts={InboxStatus.PROCESSED: number, InboxStatus.DEAD: dead},
                oldest=NOW,
                redelivered=again,
            )
            for name, number, dead, again in (("billing", 88_412, 0, 31), ("stock", 88_409, 2, 17))
        ],
    )


if __name__ == "__main__":
    console = Console(record=True, width=118, file=io.StringIO())
    console.print(snapshot().picture())
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    drawn = console.export_svg(title="semel status", unique_id="status")
    # Nobody's page is fetched to look at a picture: the fonts are the reader's own.
    IMAGE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL))
