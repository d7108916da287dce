"""Passwords and tokens are kept as hashes only."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64

from semel.errors import ConfigurationError

_N, _R, _P = 2**14, 8, 1
_MIN_TOKEN = 20


def hash_password(password: str) -> str:
    """Return what `Account` takes for a password: salted scrypt."""
    if len(password) < 8:
        raise ConfigurationError("a password for the dashboard has 8 characters or more")
    salt = secrets.token_bytes(16)
    return f"scrypt:{_N}:{_R}:{_P}:{_text(salt)}:{_text(_scrypt(password, salt, _N, _R, _P))}"


def hash_token(token: str) -> str:
    """Return what `Account` takes for a token, which must be long and random."""
    if len(token) < _MIN_TOKEN:
        raise ConfigurationError(
            f"a token has {_MIN_TOKEN} characters or more: take secrets.token_urlsafe()"
        )
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def check_hash(stored: str) -> str:
    """Return *stored* if one of the functions above made it."""
    kind, _, rest = stored.partition(":")
    if kind == "sha256" and len(rest) == 64:
        return stored
    if kind == "scrypt" and len(rest.split(":")) == 5:
        return stored
    raise ConfigurationError(
        "this is no hash: make it with hash_password() or hash_token() of semel.dashboard"
    )


def is_password(password: str, stored: str) -> bool:
    """Compare in a time that does not depend on how much is right; takes long, on purpose."""
    try:
        _, n, r, p, salt, key = stored.split(":")
        made = _scrypt(password, b64decode(salt), int(n), int(r), int(p))
        return hmac.compare_digest(made, b64decode(key))
    except (ValueError, NotBase64):
        return False


def is_token(token: str, stored: str) -> bool:
    """The same for a token."""
    digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    return hmac.compare_digest(digest, stored)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=2**27, dklen=32)


def _text(data: bytes) -> str:
    return b64encode(data).decode()
