"""What signed and encrypted bodies share: JOSE's compact form, keys, what is vouched for."""

from __future__ import annotations

import binascii
import json
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from semel.envelope import MessageEnvelope, check_name
from semel.errors import ConfigurationError, SerializationError
from semel.serializers import Encoded, JsonSerializer, Serializers, encode, loads_json

if TYPE_CHECKING:
    from semel.protocols import Serializer


class JoseSerializer(ABC):
    """A payload of the *inner* serializer in a JOSE object, under one of *keys*, by key id.

    The first key writes, all of them read: to rotate, put a new one in front, and take the old
    one away when nothing of it is on its way any more.

    The object names the message that it belongs to: its id, type, tenant, order key, aggregate
    and schema. Beside another message it is refused.
    """

    #: A consumer with this serializer parks what none of its serializers reads.
    exclusive = True
    content_type: ClassVar[str]
    algorithm: ClassVar[Mapping[str, str]]

    def __init__(self, keys: Mapping[str, bytes], *, inner: Serializer | None = None) -> None:
        if not keys:
            raise ConfigurationError("give at least one key, as {key id: secret bytes}")
        for name, key in keys.items():
            check_name("key id", name)
            self._check_key(key)
        self._keys = {name: bytes(key) for name, key in keys.items()}
        self._inner = inner or JsonSerializer()
        self._readers = Serializers([self._inner])

    def encode(self, message: MessageEnvelope) -> Encoded:
        """Encode the payload, and protect it."""
        plain = encode(self._inner, message)
        kid, key = next(iter(self._keys.items()))
        header: dict[str, Any] = {**self.algorithm, "kid": kid, "cty": plain.content_type}
        about = _about(message, plain.schema_id, plain.schema_version)
        header |= {name: value for name, value in about.items() if value is not None}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        body = self._protect(to_base64(text), plain.body, key)
        return Encoded(body, self.content_type, plain.schema_id, plain.schema_version)

    def decode(self, message: MessageEnvelope) -> Any:
        """Return the payload; `SerializationError` unless a key vouches for all of it."""
        try:
            protected, *parts = message.body.split(b".")
            header = loads_json(from_base64(protected))
            key = self._keys.get(header["kid"])
            known = {name: header.get(name) for name in self.algorithm} == self.algorithm
            content_type = header["cty"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SerializationError(f"not a body of {self.content_type}") from None
        if key is None:
            raise SerializationError("the body was protected with a key that is not known here")
        if not known:
            raise SerializationError("the body was protected in a way that is not accepted")
        try:
            plain = self._open(protected, parts, key)
        except ValueError:
            raise SerializationError(
                "the body was changed, or protected with another key"
            ) from None
        about = _about(message, message.schema_id, message.schema_version)
        wrong = [name for name in about if about[name] != header.get(name)]
        if wrong:
            names = ", ".join(wrong)
            raise SerializationError(f"the body belongs to another message: {names} differ")
        inside = MessageEnvelope.restore(message.__dict__ | _content(plain, content_type))
        return self._readers.attach(inside).payload

    def dumps(self, payload: Any) -> NoReturn:
        """Raise: a payload alone names no message."""
        raise ConfigurationError(
            f"{type(self).__name__} protects payloads of messages: use it as the serializer of "
            "a storage, an outbox or a consumer"
        )

    loads = dumps

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._keys)})"

    @abstractmethod
    def _check_key(self, key: bytes) -> None:
        """Raise `ConfigurationError` for a key that does not fit."""

    @abstractmethod
    def _protect(self, protected: bytes, plain: bytes, key: bytes) -> bytes:
        """Return what follows the header."""

    @abstractmethod
    def _open(self, protected: bytes, parts: list[bytes], key: bytes) -> bytes:
        """Return what was protected; `ValueError` if anything is wrong."""


def _about(message: MessageEnvelope, schema_id: str | None, schema_version: int) -> dict[str, Any]:
    return {
        "ce_id": message.event_id,
        "ce_type": message.event_type,
        "ce_tenantid": message.tenant_id,
        "ce_partitionkey": message.order_key,
        "ce_subject": message.aggregate_id,
        "ce_dataschema": schema_id,
        "ce_schemaversion": schema_version,
    }


def _content(body: bytes, content_type: str) -> dict[str, Any]:
    # The outer message decodes by its own serializer; this one starts afresh.
    return {"body": body, "content_type": content_type, "decoder": None}


def to_base64(data: bytes) -> bytes:
    """Encode as JOSE does: URL-safe, without padding."""
    return urlsafe_b64encode(data).rstrip(b"=")


def from_base64(text: bytes) -> bytes:
    """Decode what `to_base64` wrote, and nothing else; `ValueError` otherwise."""
    try:
        data = urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        raise ValueError from None
    if to_base64(data) != text:
        raise ValueError  # other spellings of the same bytes
    return data
