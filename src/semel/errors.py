"""Every error that semel raises.

    SemelError
    ├── ConfigurationError            wiring or settings are wrong; the text says what to change
    ├── InvalidMessageError           topic, key, id, tenant or metadata that cannot be sent
    ├── SerializationError            a payload cannot be encoded, or bytes cannot be decoded
    │   └── PayloadTooLargeError
    ├── NoTransactionError            an event was added where no transaction would protect it
    ├── StorageError
    │   ├── DuplicateMessageError     the inbox already holds this message
    │   ├── PayloadConflictError      same message id, other payload
    │   ├── TransactionMisuseError    a handler committed or rolled back the transaction it was lent
    │   └── SchemaError               tables missing, old or damaged
    ├── BusError
    │   ├── PublishError              one message was not confirmed; ``kind`` says why
    │   └── WireError                 a message from the broker that is no message of ours
    ├── UnknownCommandError
    └── IdempotencyError
        ├── IdempotencyKeyMissingError    400
        ├── IdempotencyConflictError      409
        └── IdempotencyMismatchError      422

A handler's own exception is never wrapped.
No message text contains a payload, a password or a connection string.
"""

from __future__ import annotations

import re
from typing import Literal

PublishErrorKind = Literal["transient", "permanent", "destination", "unknown"]


class SemelError(Exception):
    """Base of all errors of this library."""


class ConfigurationError(SemelError):
    """Wiring or settings are wrong."""


class InvalidMessageError(SemelError, ValueError):
    """A field of a message cannot be stored or sent as it is."""


class SerializationError(SemelError, ValueError):
    """A payload cannot be encoded, or bytes cannot be decoded."""


class PayloadTooLargeError(SerializationError):
    """The encoded payload exceeds the limit."""


class NoTransactionError(SemelError):
    """There is no transaction that the event could belong to."""


class StorageError(SemelError):
    """The database refused or cannot do what was asked."""


class DuplicateMessageError(StorageError):
    """The inbox already holds this message id for this tenant and consumer."""


class PayloadConflictError(StorageError):
    """A message id came again with another payload."""


class TransactionMisuseError(StorageError):
    """A handler ended the transaction that it was lent."""


class SchemaError(StorageError):
    """semel's tables are missing, of another version, or damaged."""


class BusError(SemelError):
    """The broker cannot be reached or refused an operation."""


class PublishError(BusError):
    """A message was not confirmed by the broker.

    ``kind`` is *transient* (rejected, may pass later), *permanent* (rejected for ever),
    *destination* (the broker, its credentials or the topic are in trouble; not this message's
    fault) or *unknown* (it may or may not have arrived).
    """

    def __init__(self, text: str, *, kind: PublishErrorKind = "transient") -> None:
        super().__init__(text)
        self.kind: PublishErrorKind = kind


class WireError(BusError):
    """Bytes or headers from the broker do not form a message."""


class UnknownCommandError(SemelError):
    """No handler is registered for this type of command."""


class IdempotencyError(SemelError):
    """A request cannot be executed under its idempotency key."""

    status_code = 409


class IdempotencyKeyMissingError(IdempotencyError):
    """The route needs an idempotency key and the request has none, or a malformed one."""

    status_code = 400


class IdempotencyConflictError(IdempotencyError):
    """The key is in use by a request that has not finished, or its answer was not kept."""

    status_code = 409


class IdempotencyMismatchError(IdempotencyError):
    """The key was used before with another request."""

    status_code = 422


def missing_extra(what: str, extra: str) -> str:
    """Say how to install the optional dependency that *what* needs."""
    return f"{what} needs an optional dependency: pip install 'semel[{extra}]'"


# Repetitions are bounded or possessive: the time for a long text must not grow with its square.
_SECRETS = (
    # Up to the last @: a password may contain one, or a slash.
    (re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]{0,30}://)\S*@"), r"\g<scheme>***@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 ***"),
    (
        re.compile(
            r"(?i)((?:password|passwd|pwd|secret|token|api_?key)[\w.-]{0,40}+)"
            r"([\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|\S+)"
        ),
        r"\1\2***",
    ),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), "***"),
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_LINE = 4000


def redact(text: str) -> str:
    """Return *text* without passwords, tokens and credentials in addresses."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def describe(error: BaseException, *, limit: int = 500) -> str:
    """One redacted line about *error*, short enough for the ``error_message`` column.

    Only the first line is kept: drivers append row values and parameters below it.
    """
    lines = str(error).strip().splitlines()
    first = redact(lines[0][:_MAX_LINE]) if lines else ""
    name = type(error).__name__
    text = f"{name}: {first}" if first else name
    text = _CONTROL.sub("", text).encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
