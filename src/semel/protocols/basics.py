"""Small seams: time, payloads, metrics and traces."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from semel.observer import Operation


class Clock(Protocol):
    """Time of this process. Leases and due times are decided by the database's clock."""

    def now(self) -> datetime:
        """Return the wall clock, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""


class Serializer(Protocol):
    """Payload to bytes and back."""

    content_type: str

    def dumps(self, payload: Any) -> bytes:
        """Raise `SerializationError` if *payload* cannot be represented."""

    def loads(self, data: bytes) -> Any:
        """Raise `SerializationError` if *data* is not of this format."""


class Observer(Protocol):
    """Metrics and traces. Must not block, must not raise.

    Called per batch where there are batches, from any thread. Names and labels are those of
    `semel.metrics`.
    """

    def observe(self, operation: Operation) -> AbstractContextManager[None]:
        """Surround an operation; its `outcome` is read at exit."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def record(self, name: str, *values: float, **labels: str) -> None:
        """Add observations, in base units, to a distribution."""

    def inject(
        self, metadata: MutableMapping[str, str], *, topic: str = "", event_id: str = ""
    ) -> None:
        """Add the current trace context to the metadata of a message that is being made."""
