"""When to try again, and when to give up."""

from __future__ import annotations

import random
from dataclasses import dataclass

from semel.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off with full jitter and a cap.

    >>> RetryPolicy(max_attempts=3, jitter=False).delay(2)
    2.0
    """

    max_attempts: int = 5
    base_seconds: float = 1.0
    max_seconds: float = 300.0
    factor: float = 2.0
    jitter: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError("RetryPolicy.max_attempts must be at least 1")
        if self.base_seconds < 0 or self.max_seconds < self.base_seconds or self.factor < 1:
            raise ConfigurationError(
                "RetryPolicy needs 0 <= base_seconds <= max_seconds and factor >= 1"
            )

    def gives_up(self, attempts: int) -> bool:
        """Tell whether *attempts* failed attempts are enough."""
        return attempts >= self.max_attempts

    def delay(self, attempts: int) -> float:
        """Seconds to wait after the *attempts*-th failed attempt (the first is 1)."""
        exponent = min(max(attempts - 1, 0), 64)
        ceiling = min(self.max_seconds, self.base_seconds * self.factor**exponent)
        return random.uniform(0, ceiling) if self.jitter else ceiling  # noqa: S311  no secret

    def horizon(self) -> float:
        """Return the longest time in seconds that all attempts together can take."""
        return sum(
            min(self.max_seconds, self.base_seconds * self.factor ** min(n, 64))
            for n in range(self.max_attempts)
        )
