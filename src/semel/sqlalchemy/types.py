"""Column types that mean the same on every database."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, LargeBinary, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from semel.sqlalchemy.dialects import database_of


class Name(TypeDecorator[str]):
    """A short text that compares byte for byte: `a`, `A` and `a ` are three names."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type on this database."""
        return dialect.type_descriptor(database_of(dialect).name_type(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Encode where names are stored as bytes."""
        if value is not None and database_of(dialect).names_are_bytes:
            return value.encode()
        return value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Decode where names are stored as bytes; elsewhere do nothing, which costs nothing."""
        return _decoded if database_of(dialect).names_are_bytes else None


def _decoded(value: Any) -> Any:
    return value if value is None or value.__class__ is str else value.decode()


class UtcDateTime(TypeDecorator[datetime]):
    """An instant, to the microsecond, in UTC, whatever the server's time zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type on this database."""
        return dialect.type_descriptor(database_of(dialect).instant_type())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; drop the zone where the column has none."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value if database_of(dialect).instants_have_zone else value.replace(tzinfo=None)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Say that it is UTC."""
        read = self.impl_instance.result_processor(dialect, coltype)
        if database_of(dialect).instants_have_zone:
            return read

        def process(value: Any) -> datetime | None:
            instant: datetime | None = value if read is None else read(value)
            if instant is None or instant.tzinfo is not None:
                return instant
            return datetime.combine(instant, instant.time(), UTC)  # a sixth of replace()'s time

        return process


class JsonDocument(TypeDecorator[Any]):
    """JSON text, stored as written: no key is reordered and no number rewritten.

    Binds text; reads parsed values.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type on this database."""
        return dialect.type_descriptor(database_of(dialect).document_type())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Pass text on; encode anything else."""
        if value is None or isinstance(value, str):
            text = value
        else:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        if text is not None and database_of(dialect).documents_are_parsed:
            return json.loads(text)
        return text

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Parse where the driver has not."""
        if value is None or database_of(dialect).documents_are_parsed:
            return value
        return json.loads(value)


class Position(TypeDecorator[int]):
    """A 64-bit number that the database issues when it is a primary key."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type on this database."""
        return dialect.type_descriptor(database_of(dialect).position_type())


class Bytes(TypeDecorator[bytes]):
    """Bytes without a practical limit."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type on this database."""
        return dialect.type_descriptor(database_of(dialect).bytes_type())
