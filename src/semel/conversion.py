"""JSON values to dataclasses, by the standard library alone."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

_TEXTS: dict[Any, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}
_LISTS = (list, tuple, set, frozenset, Sequence)


def convert(value: Any, kind: Any, at: str = "$") -> Any:
    """Return *value*, as it came out of JSON, as a *kind*; raise `ValueError` if it is none.

    Unknown members are ignored, so that producers may add some. The text of the error tells the
    place and the types, never the value.
    """
    if kind is Any or kind is object:
        return value
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is types.UnionType:
        return _union(value, typing.get_args(kind), at)
    if origin is Literal:
        if value in typing.get_args(kind):
            return value
        raise ValueError(f"{at} is none of the {len(typing.get_args(kind))} values allowed")
    if origin is typing.Annotated:
        return convert(value, typing.get_args(kind)[0], at)
    if (origin or kind) in _LISTS:
        return _list(value, origin or kind, typing.get_args(kind), at)
    if (origin or kind) in (dict, Mapping):
        _expect(value, dict, "an object", at)
        arguments = typing.get_args(kind)
        inner = arguments[1] if arguments else Any
        return {key: convert(item, inner, f"{at}.*") for key, item in value.items()}
    if isinstance(kind, type):
        return _plain(value, kind, at)
    return value


def _plain(value: Any, kind: type[Any], at: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _dataclass(value, kind, at)
    if kind in _TEXTS:
        return _text(value, kind, at)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{at} is no {kind.__name__}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, bool):
        raise ValueError(f"{at} is a bool, not an int")
    _expect(value, kind, kind.__name__, at)
    return value


def _dataclass(value: Any, kind: Any, at: str) -> Any:
    if isinstance(value, kind):
        return value
    _expect(value, dict, "an object", at)
    hints = _hints(kind)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name in value:
            inner = hints.get(field.name, Any)
            arguments[field.name] = convert(value[field.name], inner, f"{at}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{at}.{field.name} is missing")
    return kind(**arguments)


@lru_cache(maxsize=1024)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _text(value: Any, kind: type[Any], at: str) -> Any:
    if isinstance(value, kind):
        return value
    if kind is Decimal and isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    _expect(value, str, f"the text of a {kind.__name__}", at)
    try:
        return _TEXTS[kind](value)
    except (ValueError, ArithmeticError):
        raise ValueError(f"{at} is not the text of a {kind.__name__}") from None


def _union(value: Any, kinds: tuple[Any, ...], at: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    reasons = []
    for kind in kinds:
        if kind is not types.NoneType:
            try:
                return convert(value, kind, at)
            except ValueError as error:
                reasons.append(error)
    if len(reasons) == 1:
        raise reasons[0]
    raise ValueError(f"{at} fits none of {len(reasons)} types")


def _list(value: Any, kind: Any, arguments: tuple[Any, ...], at: str) -> Any:
    _expect(value, list, "a list", at)
    make = list if kind is Sequence else kind
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(arguments) != len(value):
            raise ValueError(f"{at} has {len(value)} items, not {len(arguments)}")
        pairs = zip(value, arguments, strict=True)
        return tuple(convert(item, inner, f"{at}[{n}]") for n, (item, inner) in enumerate(pairs))
    inner = arguments[0] if arguments else Any
    return make(convert(item, inner, f"{at}[{n}]") for n, item in enumerate(value))


def _expect(value: Any, kind: Any, shown: str, at: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{at} is {type(value).__name__}, not {shown}")  # noqa: TRY004
