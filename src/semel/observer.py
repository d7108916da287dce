"""The one seam for metrics and traces."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.envelope import MessageEnvelope
    from semel.protocols import Observer


@dataclass(slots=True, kw_only=True)
class Operation:
    """Something that takes time: *publish*, *process*, *command*.

    *outcome* is set before the end: *ok*, or what went wrong in one word.
    """

    name: str
    messages: Sequence[MessageEnvelope] = ()
    labels: dict[str, str] = field(default_factory=dict)
    outcome: str = "ok"


def system_of(bus: object) -> str:
    """Return the name of the broker behind *bus* for metrics and spans."""
    return str(getattr(bus, "system", None) or type(bus).__name__)


class NullObserver:
    """Observes nothing."""

    def observe(self, operation: Operation) -> AbstractContextManager[None]:
        """Surround *operation*."""
        return nullcontext()

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add *value* to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def record(self, name: str, *values: float, **labels: str) -> None:
        """Add observations to a distribution."""

    def inject(
        self, metadata: MutableMapping[str, str], *, topic: str = "", event_id: str = ""
    ) -> None:
        """Add the current trace context to an outgoing message."""


class LoggingObserver(NullObserver):
    """Writes counters and gauges to a logger at DEBUG: for development."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("semel.metrics")

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Log a counter."""
        self._logger.debug("%s +%g", name, value, extra={"labels": labels})

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Log a gauge."""
        self._logger.debug("%s = %g", name, value, extra={"labels": labels})


class CombinedObserver:
    """Hands everything to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    @contextmanager
    def observe(self, operation: Operation) -> Iterator[None]:
        """Surround *operation* with all observers."""
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer.observe(operation))
            yield

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to all counters."""
        for observer in self.observers:
            observer.count(name, value, **labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set all gauges."""
        for observer in self.observers:
            observer.gauge(name, value, **labels)

    def record(self, name: str, *values: float, **labels: str) -> None:
        """Add to all distributions."""
        for observer in self.observers:
            observer.record(name, *values, **labels)

    def inject(
        self, metadata: MutableMapping[str, str], *, topic: str = "", event_id: str = ""
    ) -> None:
        """Let every observer add its context."""
        for observer in self.observers:
            observer.inject(metadata, topic=topic, event_id=event_id)
