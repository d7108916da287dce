"""Keys as clients send them, and as they are stored: hashed, within a scope."""

from __future__ import annotations

import hashlib
import re

from semel.envelope import DEFAULT_TENANT, MAX_NAME, check_tenant
from semel.errors import ConfigurationError, IdempotencyKeyMissingError
from semel.states import IdempotencyKey

MAX_KEY = 255
_PREFIX = 8

# RFC 8941: a string in quotation marks, in which they and the backslash are escaped.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"\Z')
_BARE = re.compile(r"[\x21\x23-\x7e][\x21-\x7e]*\Z")
_ESCAPED = re.compile(r'\\(["\\])')
# Stored as it is: what a database can hold, and nobody can mistake for the hash of another name.
_PLAIN = re.compile(r"(?!sha256:)[^\x00-\x1f\x7f\ud800-\udfff]*\Z")


def parse_key(value: str) -> str:
    r"""Return the key that a header *value* means, in quotation marks (RFC 8941) or without.

    Raises `IdempotencyKeyMissingError` unless it has 1 to 255 printable ASCII characters.

    >>> parse_key('"a-1"'), parse_key("a-1"), parse_key(r'"say \"a\""')
    ('a-1', 'a-1', 'say "a"')
    """
    text = value.strip(" \t")
    quoted = _QUOTED.match(text)
    if quoted is not None:
        key = _ESCAPED.sub(r"\1", quoted[1])
    elif _BARE.match(text):
        key = text
    else:
        raise IdempotencyKeyMissingError(
            "an idempotency key has 1 to 255 printable ASCII characters, without white space "
            "unless it is in quotation marks"
        )
    return check_key(key)


def check_key(key: str) -> str:
    """Return *key*, or raise `IdempotencyKeyMissingError` for one that cannot be used."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or not key.strip():
        raise IdempotencyKeyMissingError(
            f"an idempotency key has 1 to {MAX_KEY} characters, not all of them white space"
        )
    return key


def scoped_key(
    key: str,
    *,
    method: str,
    route: str,
    principal: str,
    tenant_id: str = DEFAULT_TENANT,
) -> IdempotencyKey:
    """Return *key* within its scope: no two tenants, principals, methods or routes share one.

    What is stored of it is a hash, and so few characters that they help to find it but not to
    use it.
    """
    if not isinstance(principal, str) or not principal:
        raise ConfigurationError(
            "an idempotency key belongs to a principal: name the caller, or give a fixed name "
            "where callers are not told apart"
        )
    check_key(key)
    return IdempotencyKey(
        tenant_id=check_tenant(tenant_id),
        principal=_fit(principal),
        method=method[:16],
        route=_fit(route),
        key_hash=hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest(),
        key_prefix="".join(c if c.isascii() and c.isprintable() else "?" for c in _start(key)),
    )


def _start(key: str) -> str:
    return key[: min(_PREFIX, len(key) // 4)]


def _fit(name: str) -> str:
    if len(name) <= MAX_NAME and _PLAIN.match(name):
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
