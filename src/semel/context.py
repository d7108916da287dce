"""What surrounds the code that adds an event, such as a request: its metadata goes along."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from semel.states import IdempotencyKey

_Key = Callable[[], IdempotencyKey | None]
_requested: ContextVar[_Key | None] = ContextVar("semel_requested", default=None)
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


def request_of(tenant_id: str) -> str | None:
    """Return what caused the events added here and now: a request with a key of *tenant_id*'s."""
    find = _requested.get()
    key = None if find is None else find()
    return None if key is None or key.tenant_id != tenant_id else key.reference


@contextmanager
def requested(key: _Key) -> Iterator[None]:
    """Name the request with *key*, asked for when an event is added, as the cause of the events."""
    token = _requested.set(key)
    try:
        yield
    finally:
        _requested.reset(token)
