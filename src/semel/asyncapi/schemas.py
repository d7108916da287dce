"""JSON Schema of what handlers take."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any, Literal
from uuid import UUID

from semel.envelope import MessageEnvelope

REFERENCE = "#/components/schemas/"

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    types.NoneType: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": ["string", "number"]},
}
_LISTS = (list, tuple, set, frozenset, Sequence)
_OBJECTS = (dict, Mapping, MutableMapping)


class Schemas:
    """Collects the schemas of types under `components`, each once, under its name."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def of(self, kind: Any) -> Schema | None:
        """Return the schema of *kind*, or None for a handler that takes whatever comes."""
        if kind in (inspect.Parameter.empty, Any, object, MessageEnvelope):
            return None
        return self._of(kind)

    def _of(self, kind: Any) -> Schema:
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self._of(arguments[0])
        if origin is typing.Union or origin is types.UnionType:
            return {"anyOf": [self._of(item) for item in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if (origin or kind) in _LISTS:
            return self._list(origin or kind, arguments)
        if (origin or kind) in _OBJECTS:
            inner = self._of(arguments[1]) if len(arguments) == 2 else {}
            return {"type": "object", **({"additionalProperties": inner} if inner else {})}
        return self._named(kind) if isinstance(kind, type) else {}

    def _list(self, kind: Any, arguments: tuple[Any, ...]) -> Schema:
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            items = [self._of(item) for item in arguments]
            return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
        unique = {"uniqueItems": True} if kind in (set, frozenset) else {}
        return {
            "type": "array",
            **({"items": self._of(arguments[0])} if arguments else {}),
        } | unique

    def _named(self, kind: type[Any]) -> Schema:
        if hasattr(kind, "model_json_schema"):
            return self._foreign(kind, _pydantic(kind))
        if hasattr(kind, "__struct_fields__"):
            return self._foreign(kind, _msgspec(kind))
        if hasattr(kind, "__pydantic_validator__"):
            adapter = import_module("pydantic").TypeAdapter(kind)
            return self._foreign(kind, adapter.json_schema(ref_template=REFERENCE + "{model}"))
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return self._record(kind)
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        return {}

    def _foreign(self, kind: type[Any], schema: Schema) -> Schema:
        """Take over what a library made: its definitions become components of ours."""
        for name, definition in schema.pop("$defs", {}).items():
            self.components.setdefault(name, definition)
        if "$ref" in schema and len(schema) == 1:
            return schema
        name = self._name(kind)
        self.components[name] = schema
        return {"$ref": REFERENCE + name}

    def _record(self, kind: Any) -> Schema:
        if kind in self._names:
            return {"$ref": REFERENCE + self._names[kind]}
        name = self._name(kind)
        self.components[name] = {}  # before its fields: it may contain itself
        hints = typing.get_type_hints(kind, include_extras=True)
        if typing.is_typeddict(kind):
            needed = sorted(kind.__required_keys__)
        else:
            fields = [field for field in dataclasses.fields(kind) if field.init]
            hints = {field.name: hints.get(field.name, Any) for field in fields}
            needed = [field.name for field in fields if _is_needed(field)]
        self.components[name] = {
            "type": "object",
            "title": kind.__name__,
            "properties": {name: self._of(inner) for name, inner in hints.items()},
            **({"required": needed} if needed else {}),
        }
        return {"$ref": REFERENCE + name}

    def _name(self, kind: type[Any]) -> str:
        """Return the type's name, with its module where two types share it."""
        if kind not in self._names:
            name = kind.__name__
            if name in self._names.values():
                name = f"{kind.__module__}.{kind.__qualname__}".replace("<locals>.", "")
            self._names[kind] = name
        return self._names[kind]


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _pydantic(kind: Any) -> Schema:
    schema: Schema = kind.model_json_schema(ref_template=REFERENCE + "{model}")
    return schema


def _msgspec(kind: Any) -> Schema:
    made, components = import_module("msgspec").json.schema_components(
        [kind], ref_template=REFERENCE + "{name}"
    )
    return {**made[0], "$defs": components}
