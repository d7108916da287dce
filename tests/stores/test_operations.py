"""The operator's side on every database."""

from __future__ import annotations

from semel.testing.contracts.inbox_search import InboxSearchContract
from semel.testing.contracts.outbox_repair import OutboxRepairContract
from semel.testing.contracts.outbox_search import OutboxSearchContract
from semel.testing.contracts.workers import WorkerStoreContract


class TestOutboxSearch(OutboxSearchContract):
    pass


class TestOutboxRepair(OutboxRepairContract):
    pass


class TestInboxSearch(InboxSearchContract):
    pass


class TestWorkers(WorkerStoreContract):
    pass
