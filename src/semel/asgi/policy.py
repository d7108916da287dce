"""How requests with an idempotency key are treated."""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass
from datetime import timedelta

from semel.errors import ConfigurationError

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"

#: What a repetition needs to read the body. Everything else belongs to the first answer alone.
REPLAY_HEADERS = (
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "content-location",
    "location",
    "etag",
    "last-modified",
    "link",
    "vary",
)
_NEVER = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "idempotent-replayed",
        "keep-alive",
        "proxy-authenticate",
        "server",
        "set-cookie",
        "set-cookie2",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyPolicy:
    """Settings of all protected routes, or of one.

    An answer is kept for *keep* if its status is among *keep_statuses*, or if the request's unit
    of work was committed and it is below 500. Otherwise the key may be used again. *lease* must
    be longer than the slowest handler takes. While another request has the key, one waits for
    *wait* at most, then the answer is 409. Of a longer answer than *max_response_bytes*, or of a
    stream unless *keep_streams*, only the fact is kept.
    """

    required: bool = True
    keep: timedelta = timedelta(hours=24)
    lease: timedelta = timedelta(seconds=60)
    wait: timedelta = timedelta(0)
    keep_statuses: Container[int] = range(200, 400)
    replay_headers: Collection[str] = REPLAY_HEADERS
    max_response_bytes: int = 1024 * 1024
    keep_streams: bool = True
    retry_after_seconds: int = 1

    def __post_init__(self) -> None:
        if self.lease <= timedelta(0) or self.keep <= timedelta(0) or self.wait < timedelta(0):
            raise ConfigurationError(
                "IdempotencyPolicy: keep and lease must be longer than nothing, wait not negative"
            )
        if self.max_response_bytes < 0:
            raise ConfigurationError("IdempotencyPolicy.max_response_bytes cannot be negative")
        if isinstance(self.replay_headers, str):
            raise ConfigurationError("IdempotencyPolicy.replay_headers is a list of names")
        names = tuple(name.lower() for name in self.replay_headers)
        if forbidden := sorted(_NEVER.intersection(names)):
            raise ConfigurationError(
                f"IdempotencyPolicy.replay_headers must not contain {', '.join(forbidden)}: a "
                "repetition may come from somebody else's connection"
            )
        object.__setattr__(self, "replay_headers", names)
