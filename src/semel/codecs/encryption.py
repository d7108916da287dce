"""Payloads that only holders of a key may read and write."""

from __future__ import annotations

import os

from semel.codecs.jose import JoseSerializer, from_base64, to_base64
from semel.errors import ConfigurationError, missing_extra

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as missing:
    raise ImportError(missing_extra("encryption", "encryption")) from missing

_NONCE = 12
_TAG = 16


class EncryptedSerializer(JoseSerializer):
    """JSON Web Encryption (RFC 7516, compact form, `dir` with A256GCM) of the payload.

    Headers stay readable: topic, type, key, metadata. Use a key for at most 2**32 messages.

    >>> EncryptedSerializer({"2026-01": b"thirty-two bytes that are random"})
    EncryptedSerializer(2026-01)
    """

    content_type = "application/vnd.semel.jwe"
    algorithm = {"alg": "dir", "enc": "A256GCM"}  # noqa: RUF012  a constant

    def _check_key(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) != 32:
            raise ConfigurationError(
                "a key to encrypt with is 32 bytes, such as secrets.token_bytes(32)"
            )

    def _protect(self, protected: bytes, plain: bytes, key: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        sealed = AESGCM(key).encrypt(nonce, plain, protected)
        parts = (protected, b"", nonce, sealed[:-_TAG], sealed[-_TAG:])
        return b".".join((parts[0], *map(to_base64, parts[1:])))

    def _open(self, protected: bytes, parts: list[bytes], key: bytes) -> bytes:
        wrapped, nonce, sealed, tag = map(from_base64, parts)
        if wrapped or len(nonce) != _NONCE or len(tag) != _TAG:
            raise ValueError
        try:
            return AESGCM(key).decrypt(nonce, sealed + tag, protected)
        except InvalidTag:
            raise ValueError from None
