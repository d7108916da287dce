"""What operators ask for and are told: filters, pages, counts, reasons. Values only."""

from semel.operations.answers import (
    BlockedKey,
    BreakerState,
    Count,
    DeadGroup,
    Lease,
    Page,
    Progress,
    Pulse,
    Verb,
    Worker,
)
from semel.operations.filters import AuditFilter, InboxFilter, OutboxFilter
from semel.operations.why import Reason, ReasonKind, Why

__all__ = [
    "AuditFilter",
    "BlockedKey",
    "BreakerState",
    "Count",
    "DeadGroup",
    "InboxFilter",
    "Lease",
    "OutboxFilter",
    "Page",
    "Progress",
    "Pulse",
    "Reason",
    "ReasonKind",
    "Verb",
    "Why",
    "Worker",
]
