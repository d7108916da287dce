"""Payloads that everybody may read and only holders of a key may write."""

from __future__ import annotations

import hmac

from semel.codecs.jose import JoseSerializer, from_base64, to_base64
from semel.errors import ConfigurationError


class SignedSerializer(JoseSerializer):
    """A JSON Web Signature (RFC 7515, compact form, HS256) with the payload in it.

    >>> SignedSerializer({"2026-01": b"thirty-two random bytes at least"})
    SignedSerializer(2026-01)
    """

    content_type = "application/vnd.semel.jws"
    algorithm = {"alg": "HS256"}  # noqa: RUF012  a constant

    def _check_key(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) < 32:
            raise ConfigurationError(
                "a key to sign with is at least 32 bytes, such as secrets.token_bytes(32)"
            )

    def _protect(self, protected: bytes, plain: bytes, key: bytes) -> bytes:
        text = protected + b"." + to_base64(plain)
        return text + b"." + to_base64(hmac.digest(key, text, "sha256"))

    def _open(self, protected: bytes, parts: list[bytes], key: bytes) -> bytes:
        plain, signature = parts
        expected = hmac.digest(key, protected + b"." + plain, "sha256")
        if not hmac.compare_digest(expected, from_base64(signature)):
            raise ValueError
        return from_base64(plain)
