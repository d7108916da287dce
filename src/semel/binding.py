"""How handlers are called: with what they say that they take."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from semel.conversion import convert
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, SerializationError, describe
from semel.protocols import UnitOfWork

Handler = Callable[..., Any]
Build = Callable[[MessageEnvelope], Any]

_MAPPINGS = (dict, Mapping, MutableMapping)


class InvalidPayloadError(SerializationError):
    """A payload is not what the handler's annotation says: trying again will not help."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A handler, and how to make its arguments."""

    handler: Handler
    name: str
    build: Build
    takes_uow: bool
    annotation: Any = inspect.Parameter.empty

    async def __call__(self, message: MessageEnvelope, uow: UnitOfWork) -> Any:
        """Call the handler."""
        return await call(self.handler, self.build(message), uow, takes_uow=self.takes_uow)


def bind(handler: Handler) -> Binding:
    """Look at *handler*'s parameters; raise `ConfigurationError` for what cannot be called."""
    name = name_of(handler)
    takes_uow = takes_second(handler)
    annotation = _first_annotation(handler, name)
    return Binding(
        handler=handler,
        name=name,
        build=_builder(annotation, name),
        takes_uow=takes_uow,
        annotation=annotation,
    )


async def call(handler: Handler, argument: Any, uow: UnitOfWork, *, takes_uow: bool) -> Any:
    """Call *handler*, sync or async, with what it takes."""
    result = handler(argument, uow) if takes_uow else handler(argument)
    if inspect.isawaitable(result):
        awaited: Awaitable[Any] = result
        return await awaited
    return result


def takes_second(handler: Handler) -> bool:
    """Tell whether *handler* takes the unit of work as its second parameter.

    A second parameter with a default value is the handler's own, unless it is called `uow`.
    """
    known = _known.get(handler) if isinstance(handler, types.FunctionType) else None
    if known is None:
        known = _takes_second(handler)
        if isinstance(handler, types.FunctionType):
            _known[handler] = known
    return known


# Reading a signature takes as long as a statement of SQL, and handlers are called often.
_known: WeakKeyDictionary[types.FunctionType, bool] = WeakKeyDictionary()


def _takes_second(handler: Handler) -> bool:
    name = name_of(handler)
    if not callable(handler):
        raise ConfigurationError(f"{name} is not callable: register a function")
    parameters = _parameters(handler, name)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not positional and not variable:
        raise ConfigurationError(
            f"handler {name} takes no parameter: it must take the message, "
            "and may take the unit of work: async def handle(message, uow)"
        )
    needed = [p for p in positional[2:] if p.default is p.empty]
    needed += [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if needed:
        raise ConfigurationError(
            f"handler {name} needs {', '.join(repr(p.name) for p in needed)}: a handler is called "
            "with the message and the unit of work only"
        )
    if len(positional) < 2:
        return False
    return positional[1].default is inspect.Parameter.empty or positional[1].name == "uow"


def name_of(handler: Handler) -> str:
    """Return a short name of *handler* for records and messages."""
    function = inspect.unwrap(handler)
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or type(handler).__qualname__
    return f"{module}.{name}".lstrip(".")[:255]


def _parameters(handler: Handler, name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the parameters of {name} cannot be read: wrap it in a function that takes "
            "the message and the unit of work"
        ) from None


def _first_annotation(handler: Handler, name: str) -> Any:
    annotation = _parameters(handler, name)[0].annotation
    if not isinstance(annotation, str):
        return annotation
    function: Any = inspect.unwrap(handler)
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__globals__"):
        function = getattr(function, "__func__", None) or type(function).__call__
    scope = dict(getattr(function, "__globals__", {}))
    closure = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for free, cell in zip(names, closure, strict=False):
        try:
            scope[free] = cell.cell_contents
        except ValueError:
            continue
    value: Any = annotation
    try:
        while isinstance(value, str):
            value = eval(value, scope)  # noqa: S307  the application's own annotation
    except Exception:  # noqa: BLE001  whatever it is, the annotation has no value
        if annotation.rpartition(".")[2] == "MessageEnvelope":
            return MessageEnvelope
        raise ConfigurationError(
            f"the annotation {annotation!r} of the first parameter of handler {name} cannot be "
            "resolved: import the type at the top of the module (not under TYPE_CHECKING), "
            "or define it there"
        ) from None
    return value


def _builder(annotation: Any, name: str) -> Build:
    if annotation in (inspect.Parameter.empty, Any, object, MessageEnvelope):
        return lambda message: message
    origin = typing.get_origin(annotation) or annotation
    if origin in _MAPPINGS or typing.is_typeddict(annotation):
        return _mapping
    if isinstance(annotation, type):
        make = _maker(annotation)
        if make is not None:
            return lambda message: _checked(make, message, annotation)
    shown = getattr(annotation, "__name__", None) or str(annotation)
    raise ConfigurationError(
        f"handler {name} asks for {shown}, which semel cannot make of a message: annotate the "
        "first parameter with MessageEnvelope, dict, a dataclass, a pydantic model or a "
        "msgspec struct"
    )


def _maker(kind: type[Any]) -> Callable[[Any], Any] | None:
    if hasattr(kind, "model_validate"):
        build: Callable[[Any], Any] = kind.model_validate
        return build
    if hasattr(kind, "__struct_fields__"):
        msgspec = import_module("msgspec")
        return lambda payload: msgspec.convert(payload, kind)
    if hasattr(kind, "__pydantic_validator__"):
        validate: Callable[[Any], Any]
        validate = import_module("pydantic").TypeAdapter(kind).validate_python
        return validate
    if dataclasses.is_dataclass(kind):
        return lambda payload: convert(payload, kind)
    return None


def convert_to(kind: Any, value: Any) -> Any:
    """Return *value*, as JSON gave it, as a *kind*; raise `SerializationError` if it is none."""
    if kind in (Any, None, types.NoneType):
        return value
    make = _maker(kind) if isinstance(kind, type) else None
    try:
        return convert(value, kind) if make is None else make(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"the value is no {getattr(kind, '__name__', kind)} ({describe(error, limit=300)})"
        ) from None


def _mapping(message: MessageEnvelope) -> Any:
    payload = message.payload
    if not isinstance(payload, dict):
        raise InvalidPayloadError(
            f"the payload is a {type(payload).__name__}, and the handler asks for a dict"
        )
    return payload


def _checked(make: Callable[[Any], Any], message: MessageEnvelope, kind: type[Any]) -> Any:
    payload = message.payload
    try:
        return make(payload)
    except (ValueError, TypeError, RecursionError) as error:
        # Validators are ValueErrors; the first line of their texts has no values in it.
        raise InvalidPayloadError(
            f"the payload is no {kind.__name__} ({describe(error, limit=300)})"
        ) from None
