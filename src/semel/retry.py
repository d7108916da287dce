"""When to try again, and when to give up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf

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
        # Written so that NaN fails, too.
        if not (0 <= self.base_seconds <= self.max_seconds < inf and 1 <= self.factor < inf):
            raise ConfigurationError(
                "RetryPolicy needs 0 <= base_seconds <= max_seconds and factor >= 1, all finite"
            )

    def gives_up(self, attempts: int) -> bool:
        """Tell whether *attempts* failed attempts are enough."""
        return attempts >= self.max_attempts

    def delay(self, attempts: int) -> float:
        """Seconds to wait after the *attempts*-th failed attempt (the first is 1)."""
        ceiling = self._ceiling(max(attempts - 1, 0))
        return random.uniform(0, ceiling) if self.jitter else ceiling  # noqa: S311  no secret

    def horizon(self) -> float:
        """Return the longest time in seconds that all attempts together can take."""
        return sum(self._ceiling(n) for n in range(self.max_attempts))

    def _ceiling(self, exponent: int) -> float:
        try:
            return min(self.max_seconds, self.base_seconds * self.factor ** min(exponent, 64))
        except OverflowError:
            return self.max_seconds
