"""JSON and MessagePack by msgspec."""

from __future__ import annotations

from typing import Any

from semel.errors import SerializationError, missing_extra
from semel.serializers import JSON, JsonSerializer, refuse_nul, to_plain

try:
    import msgspec
except ImportError as missing:
    raise ImportError(missing_extra("msgspec", "msgspec")) from missing

_JSON: Any = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic")
_PACK: Any = msgspec.msgpack.Encoder(enc_hook=to_plain, order="deterministic")
# The order of sets is not deterministic here, but keys may be of any type.
_PACK_ANY: Any = msgspec.msgpack.Encoder(enc_hook=to_plain)
_PROBLEMS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class MsgspecJsonSerializer:
    """JSON, as strict as `JsonSerializer` and faster.

    The forms are msgspec's own: keys are sorted, times in UTC end in Z, `bytes` are base64.
    """

    content_type = JSON

    def dumps(self, payload: Any) -> bytes:
        """Encode *payload*, or raise `SerializationError`."""
        try:
            body: bytes = _JSON.encode(payload)
        except _PROBLEMS:
            # The standard library takes some of it, and says what is wrong with the rest.
            return JsonSerializer().dumps(payload)
        if b"null" in body:
            # NaN and infinities are written as null: the standard library tells them apart.
            return JsonSerializer().dumps(payload)
        if b"\\u0000" in body:
            refuse_nul(body.decode())
        return body

    def loads(self, data: bytes) -> Any:
        """Decode *data*, or raise `SerializationError`."""
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise SerializationError(f"not valid JSON ({type(error).__name__})") from None


class MessagePackSerializer:
    """MessagePack: smaller than JSON, with `bytes` and times of their own."""

    content_type = "application/msgpack"
    aliases = ("application/x-msgpack", "application/vnd.msgpack")

    def dumps(self, payload: Any) -> bytes:
        """Encode *payload*, or raise `SerializationError`."""
        try:
            return self._encode(payload)
        except _PROBLEMS as error:
            raise SerializationError(_reason(error)) from None

    def loads(self, data: bytes) -> Any:
        """Decode *data*, or raise `SerializationError`."""
        try:
            return msgspec.msgpack.decode(data)
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
            raise SerializationError(f"not valid MessagePack ({type(error).__name__})") from None

    def _encode(self, payload: Any) -> bytes:
        try:
            body: bytes = _PACK.encode(payload)
        except TypeError:
            body = _PACK_ANY.encode(payload)
        return body


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "the payload contains a lone surrogate, which is not valid Unicode text"
    if isinstance(error, RecursionError):
        return "the payload is nested too deeply or refers to itself"
    if isinstance(error, OverflowError):
        return "the payload contains an integer of more than 64 bits, which MessagePack lacks"
    if isinstance(error, TypeError):
        return f"the payload cannot be encoded: {str(error).replace('is not JSON', 'is unknown')}"
    return f"the payload cannot be encoded ({type(error).__name__})"
