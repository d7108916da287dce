"""Payload to bytes and back."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from semel.errors import SerializationError

JSON = "application/json"
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class JsonSerializer:
    """Strict JSON by the standard library: what goes out can be read back by everybody.

    Dataclasses, pydantic models and msgspec structs are encoded as objects; dates in ISO 8601,
    `Decimal` and `UUID` as strings. NaN, infinities, NUL characters and lone surrogates raise.
    """

    content_type = JSON

    def dumps(self, payload: Any) -> bytes:
        """Encode *payload*, or raise `SerializationError`."""
        try:
            text = json.dumps(
                payload,
                allow_nan=False,
                ensure_ascii=False,
                separators=(",", ":"),
                default=to_plain,
            )
            body = text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(_reason(error)) from None
        if "\\u0000" in text and _NUL.search(text):
            raise SerializationError(
                "the payload contains a NUL character, which databases and brokers reject: "
                "remove it, or send the data base64-encoded"
            )
        return body

    def loads(self, data: bytes) -> Any:
        """Decode *data*, or raise `SerializationError`."""
        return loads_json(data)


def loads_json(data: bytes | str) -> Any:
    """Decode strict JSON."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"not valid JSON ({type(error).__name__})") from None


def to_plain(value: Any) -> Any:
    """Turn what `json` cannot encode into something that it can; `TypeError` otherwise."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(type(value), "__struct_fields__"):
        return {name: getattr(value, name) for name in type(value).__struct_fields__}
    raise TypeError(
        f"{type(value).__name__} is not JSON: pass dicts, lists, strings, numbers, dates, "
        "a dataclass, a pydantic model or a msgspec struct"
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "the payload contains a lone surrogate, which is not valid Unicode text"
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "the payload is nested too deeply or refers to itself"
    if "JSON compliant" in str(error):
        return "the payload contains NaN or an infinity, which JSON does not have"
    if isinstance(error, TypeError):
        return f"the payload cannot be encoded: {error}"
    return f"the payload cannot be encoded ({type(error).__name__})"
