"""Settings of the projector, in code or from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, Self, get_type_hints

from semel.errors import ConfigurationError
from semel.retry import RetryPolicy

OnDead = Literal["block", "skip"]

_FOREVER = 86_400.0
_POSITIVE = (
    "sleep_busy",
    "sleep_idle",
    "sweep_seconds",
    "publish_timeout_seconds",
    "breaker_max_seconds",
    "breaker_alert_seconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """What is different for one topic.

    When an event of a key is DEAD, its key waits for an operator (`on_dead="block"`) or goes on
    without it (`"skip"`).
    """

    retry: RetryPolicy | None = None
    on_dead: OnDead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxProjectorConfig:
    """How the projector works; the defaults suit most services.

    `batch_size` is the number of events given to the broker at once. `sleep_busy` and
    `sleep_idle` bound how long the projector waits before it looks again without being woken.
    """

    batch_size: int = 100
    max_retry_attempts: int = 5
    sleep_busy: float = 0.1
    sleep_idle: float = 2.0
    default_tenant_id: str = "default"
    retry_base_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    lease_seconds: float = 30.0
    concurrency: int = 4
    publish_timeout_seconds: float = 30.0
    sweep_seconds: float = 30.0
    breaker_max_seconds: float = 30.0
    breaker_alert_seconds: float = 300.0
    keep_sent: bool = True
    on_dead: OnDead = "block"
    topics: Mapping[str, TopicPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.concurrency < 1:
            raise ConfigurationError("batch_size and concurrency must be at least 1")
        if not 1 <= self.lease_seconds < _FOREVER:
            raise ConfigurationError("lease_seconds must be at least 1, and at most a day")
        for name in _POSITIVE:
            # Written so that NaN fails, too.
            if not 0 < getattr(self, name) < inf:
                raise ConfigurationError(f"{name} must be more than 0, and finite")
        policies = [policy.on_dead for policy in self.topics.values() if policy.on_dead is not None]
        if not {self.on_dead, *policies} <= {"block", "skip"}:
            raise ConfigurationError("on_dead must be 'block' or 'skip'")
        self.retry_for("")

    @classmethod
    def from_env(
        cls, prefix: str = "SEMEL_OUTBOX_", environ: Mapping[str, str] | None = None
    ) -> Self:
        """Read `<prefix>BATCH_SIZE` and so on; what is not set keeps its default."""
        environ = os.environ if environ is None else environ
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for item in fields(cls):
            text = environ.get(prefix + item.name.upper())
            if text is None or item.name == "topics":
                continue
            values[item.name] = _parse(prefix + item.name.upper(), text, hints[item.name])
        return cls(**values)

    def retry_for(self, topic: str) -> RetryPolicy:
        """Return the retry policy of *topic*."""
        policy = self.topics.get(topic)
        if policy is not None and policy.retry is not None:
            return policy.retry
        return RetryPolicy(
            max_attempts=self.max_retry_attempts,
            base_seconds=self.retry_base_seconds,
            max_seconds=self.retry_max_seconds,
        )

    def blocks(self, topic: str) -> bool:
        """Tell whether a DEAD event of *topic* holds back its key."""
        policy = self.topics.get(topic)
        chosen = policy.on_dead if policy is not None and policy.on_dead else self.on_dead
        return chosen == "block"


def _parse(name: str, text: str, kind: Any) -> Any:
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number, not {text[:40]!r}") from None
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ConfigurationError(f"{name} must be true or false, not {text[:40]!r}")
    return text
