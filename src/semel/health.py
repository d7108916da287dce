"""Whether consumers are well: connected, not failing, not stuck."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from semel.clock import SystemClock
from semel.errors import describe
from semel.protocols import Clock

_logger = logging.getLogger("semel.health")

MAX_ERRORS = 5


class Checkable(Protocol):
    """A consumer. Its `oldest_running_seconds`, `is_paused`, `in_flight` and `lag` are optional."""

    def is_connected(self) -> Any:
        """Tell, or return an awaitable that tells, whether the broker is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealthInfo:
    """How a consumer is. *reason* says why it is not healthy."""

    is_healthy: bool
    last_message_at: datetime | None
    error_count: int
    is_connected: bool | None = None
    seconds_since_progress: float | None = None
    oldest_running_seconds: float | None = None
    in_flight: int = 0
    lag: int | None = None
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class _Status:
    consumer: Checkable
    last_message_at: datetime | None = None
    progress: float | None = None
    error_count: int = 0
    connected: bool | None = None
    lag: int | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerHealthService:
    """Keeps the state of registered consumers.

    A consumer is unhealthy after more than five errors in a row, while it is not connected to the
    broker or its database does not answer, and while a handler has been running for more than
    *stuck_after* seconds. An idle one is healthy.
    Connection and lag are as of the last `check_health`: call it every minute, or per probe.
    """

    stuck_after: float = 300.0
    clock: Clock = field(default_factory=SystemClock)
    _consumers: dict[str, _Status] = field(default_factory=dict, init=False)

    def register_consumer(self, name: str, consumer: Checkable) -> None:
        """Watch a consumer; the same name again replaces it."""
        self._consumers[name] = _Status(consumer=consumer)

    def record_message_processed(self, name: str) -> None:
        """Note that a message was processed; ends a row of errors."""
        status = self._consumers.get(name)
        if status is not None:
            status.last_message_at = self.clock.now()
            status.progress = self.clock.monotonic()
            status.error_count = 0

    def record_error(self, name: str) -> None:
        """Note that processing failed."""
        status = self._consumers.get(name)
        if status is not None:
            status.error_count += 1

    async def check_health(self) -> dict[str, ConsumerHealthInfo]:
        """Ask every consumer for its connection and lag, and return all states."""
        for name, status in list(self._consumers.items()):
            try:
                connected = status.consumer.is_connected()
                if inspect.isawaitable(connected):
                    connected = await connected
                status.connected = bool(connected)
                lag = getattr(status.consumer, "lag", None)
                status.lag = await lag() if lag is not None and status.connected else None
            except Exception as error:  # noqa: BLE001  a check that fails is an answer
                status.connected = False
                status.error_count += 1
                _logger.warning("health check of %s failed: %s", name, describe(error))
        return self.get_health_status()

    def get_health_status(self) -> dict[str, ConsumerHealthInfo]:
        """Return the states by name."""
        return {name: self._info(status) for name, status in self._consumers.items()}

    def _info(self, status: _Status) -> ConsumerHealthInfo:
        running = getattr(status.consumer, "oldest_running_seconds", None)
        oldest = running() if running is not None else None
        reason: str | None = None
        if status.connected is False:
            reason = "not connected to the broker"
        elif getattr(status.consumer, "is_paused", False):
            reason = "resting, because the database does not answer"
        elif oldest is not None and oldest > self.stuck_after:
            reason = f"a handler has been running for {oldest:.0f} seconds"
        elif status.error_count > MAX_ERRORS:
            reason = f"{status.error_count} errors in a row"
        return ConsumerHealthInfo(
            is_healthy=reason is None,
            last_message_at=status.last_message_at,
            error_count=status.error_count,
            is_connected=status.connected,
            seconds_since_progress=(
                None if status.progress is None else self.clock.monotonic() - status.progress
            ),
            oldest_running_seconds=oldest,
            in_flight=getattr(status.consumer, "in_flight", 0),
            lag=status.lag,
            reason=reason,
        )
