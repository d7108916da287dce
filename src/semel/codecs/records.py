"""What the formats with schemas share: records, and which schema belongs to which event."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, SerializationError

S = TypeVar("S")


class Versions(Generic[S]):
    """The schemas of each type of event, oldest first; or one schema for everything."""

    def __init__(
        self,
        one: S | None,
        by_type: Mapping[str, S | Sequence[S]] | None,
        is_list: Callable[[Any], bool],
    ) -> None:
        if (one is None) == (by_type is None):
            raise ConfigurationError("give one schema for everything, or by_type={...}")
        self._one = one
        self._by_type: dict[str, Sequence[S]] = {}
        for event_type, given in (by_type or {}).items():
            versions: Any = given if is_list(given) else (given,)
            if not versions:
                raise ConfigurationError(f"by_type[{event_type!r}] has no schema")
            self._by_type[event_type] = tuple(versions)

    @property
    def only(self) -> S:
        """The one schema for everything."""
        if self._one is None:
            raise SerializationError(
                "there is a schema per type of event: the payload alone does not tell which"
            )
        return self._one

    def all(self) -> list[S]:
        """Return every schema."""
        if self._one is not None:
            return [self._one]
        return [schema for versions in self._by_type.values() for schema in versions]

    def newest(self, message: MessageEnvelope) -> tuple[S, int]:
        """Return the schema to write *message* with, and its version."""
        if self._one is not None:
            return self._one, message.schema_version
        versions = self._of(message)
        return versions[-1], len(versions)

    def written(self, message: MessageEnvelope) -> S:
        """Return the schema that *message* says it was written with."""
        if self._one is not None:
            return self._one
        versions = self._of(message)
        if message.schema_version > len(versions):
            raise SerializationError(
                f"version {message.schema_version} of {message.event_type} is newer than the "
                f"{len(versions)} that are known here"
            )
        return versions[message.schema_version - 1]

    def _of(self, message: MessageEnvelope) -> Sequence[S]:
        try:
            return self._by_type[message.event_type]
        except KeyError:
            raise SerializationError(
                f"there is no schema for event type {message.event_type!r}: add it to by_type"
            ) from None


def to_record(value: Any) -> Any:
    """Turn dataclasses, models and structs into dictionaries; leave other values as they are."""
    if isinstance(value, dict):
        return {name: to_record(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_record(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_record(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(type(value), "model_dump"):
        return to_record(value.model_dump())
    if hasattr(type(value), "__struct_fields__"):
        return {name: to_record(getattr(value, name)) for name in type(value).__struct_fields__}
    return value.value if isinstance(value, Enum) else value
