"""What surrounds the code that adds an event, such as a request: its metadata goes along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_carried: ContextVar[Mapping[str, str] | None] = ContextVar("semel_carried", default=None)


def carried() -> Mapping[str, str]:
    """Return the metadata that events added here and now get."""
    return _carried.get() or {}


@contextmanager
def carry(metadata: Mapping[str, str]) -> Iterator[None]:
    """Give *metadata* to every event that is added inside, and in tasks that begin inside.

    An event that a message caused is not concerned: it continues that message's conversation.

    >>> with carry({"correlation_id": "17"}):
    ...     carried()["correlation_id"]
    '17'
    """
    token = _carried.set(dict(metadata))
    try:
        yield
    finally:
        _carried.reset(token)
