from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.maintenance import Removed, Retention, cleanup


class Store:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.calls: list[dict[str, Any]] = []

    async def cleanup(self, **options: Any) -> int:
        self.calls.append(options)
        return self.rows


class Storage:
    def __init__(self) -> None:
        self.outbox = Store(3)
        self.inbox = Store(5)
        self.idempotency = Store(2)


async def test_cleanup_keeps_what_retention_says() -> None:
    """All tables are cleaned with their own windows, in batches; progress is told."""
    storage: Any = Storage()
    told: list[tuple[str, int]] = []
    removed = await cleanup(
        storage, Retention(batch_size=100), progress=lambda *given: told.append(given)
    )
    assert Removed(outbox=3, inbox=5, idempotency=2) == removed
    assert [{"older_than": timedelta(days=7), "batch_size": 100}] == storage.outbox.calls
    assert [{"older_than": timedelta(days=30), "batch_size": 100}] == storage.inbox.calls
    assert [{"batch_size": 100}] == storage.idempotency.calls
    assert [("outbox", 3), ("inbox", 5), ("idempotency", 2)] == told


async def test_none_keeps_for_ever() -> None:
    """A table without a window is left alone; idempotency keys carry their own."""
    storage: Any = Storage()
    assert Removed(idempotency=2) == await cleanup(storage, Retention(outbox_sent=None, inbox=None))
    assert [] == storage.outbox.calls + storage.inbox.calls


def test_the_inbox_must_outlast_redelivery() -> None:
    """A window that is too short is refused, with both numbers."""
    with pytest.raises(ConfigurationError, match=r"after 3 days, .* for 7 days"):
        Retention(inbox=timedelta(days=3))
    short = Retention(inbox=timedelta(days=3), redelivery_horizon=timedelta(days=1))
    with pytest.raises(ConfigurationError, match=r"after 3 days, .* for 3 days"):
        short.check(timedelta(days=3))
    Retention(inbox=None).check(timedelta(days=1000))


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"outbox_sent": timedelta(0)}, {"inbox": -timedelta(days=1)}],
)
def test_windows_and_batches_must_be_something(options: dict[str, Any]) -> None:
    """Nothing would be kept, or nothing removed."""
    with pytest.raises(ConfigurationError, match="Retention"):
        Retention(**options)
