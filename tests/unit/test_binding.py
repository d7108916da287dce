from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Literal, TypedDict
from uuid import UUID

import pytest

from semel.binding import InvalidPayloadError, bind, takes_second
from semel.conversion import convert
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


@dataclasses.dataclass
class Order:
    id: UUID
    at: datetime
    total: Decimal
    lines: list[Line]
    colour: Colour | None = None
    tags: dict[str, int] = dataclasses.field(default_factory=dict)
    kind: Literal["new", "old"] = "new"
    pair: tuple[int, str] = (0, "")
    ratio: float = 0.0


class Placed(TypedDict):
    id: int


GOOD = {
    "id": "12345678-1234-5678-1234-567812345678",
    "at": "2026-01-01T00:00:00+00:00",
    "total": "9.90",
    "lines": [{"sku": "a"}, {"sku": "b", "count": 2}],
}


def test_a_dataclass_is_made_of_json() -> None:
    """Nested types are made too; what a producer adds is ignored."""
    order = convert(
        GOOD | {"colour": "red", "tags": {"x": 1}, "pair": [1, "a"], "ratio": 1, "new": 1}, Order
    )
    assert [Line("a", 1), Line("b", 2)] == order.lines
    assert (Decimal("9.90"), Colour.RED, (1, "a"), 1.0) == (
        order.total,
        order.colour,
        order.pair,
        order.ratio,
    )
    assert UUID(GOOD["id"]) == order.id


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "x"}, r"\$\.id is not the text of a UUID"),
        ({"at": 5}, r"\$\.at is int, not the text of a datetime"),
        ({"total": True}, r"\$\.total is bool"),
        ({"lines": [{"sku": 1}]}, r"\$\.lines\[0\]\.sku is int, not str"),
        ({"lines": [{}]}, r"\$\.lines\[0\]\.sku is missing"),
        ({"lines": {}}, r"\$\.lines is dict, not a list"),
        ({"colour": "blue"}, r"\$\.colour is no Colour"),
        ({"tags": {"secret": "x"}}, r"\$\.tags\.\* is str, not int"),
        ({"kind": "other"}, r"\$\.kind is none of the 2 values"),
        ({"pair": [1]}, r"\$\.pair has 1 items, not 2"),
        ({"lines": [{"sku": "a", "count": True}]}, r"count is a bool, not an int"),
    ],
)
def test_what_does_not_fit_is_named_by_place_and_type(change: dict[str, Any], text: str) -> None:
    """The error tells where and what, never the value."""
    with pytest.raises(ValueError, match=text) as caught:
        convert(GOOD | change, Order)
    assert "secret" not in str(caught.value)


async def one(message: Any) -> None: ...
async def two(message: Any, uow: Any) -> None: ...
async def default(message: Any, retries: int = 3) -> None: ...
async def named(message: Any, uow: Any = None) -> None: ...
async def anything(*given: Any) -> None: ...


class Callables:
    async def method(self, message: MessageEnvelope, uow: Any) -> None: ...

    async def __call__(self, message: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("expected", "handler"),
    [
        (False, one),
        (True, two),
        (False, default),
        (True, named),
        (False, anything),
        (False, partial(two, uow=1)),
        (True, Callables().method),
        (False, Callables()),
    ],
)
def test_the_second_parameter_is_the_unit_of_work(
    expected: bool, handler: Callable[..., Any]
) -> None:
    """A default value of the handler's own is left alone."""
    assert expected is takes_second(handler)


async def payload(message: dict[str, Any]) -> None: ...
async def mapping(message: Mapping[str, Any]) -> None: ...
async def typed(message: Placed) -> None: ...
async def envelope(message: MessageEnvelope) -> None: ...
async def untyped(message) -> None: ...


@pytest.mark.parametrize(
    ("expected", "handler"),
    [
        ("payload", payload),
        ("payload", mapping),
        ("payload", typed),
        ("payload", Callables()),
        ("envelope", envelope),
        ("envelope", untyped),
        ("envelope", Callables().method),
        ("payload", partial(payload)),
    ],
)
def test_the_annotation_decides_what_is_handed_over(expected: str, handler: Any) -> None:
    """Without an annotation it is the envelope."""
    message = MessageEnvelope(topic="t", payload={"id": 1})
    made = bind(handler).build(message)
    assert (message.payload if expected == "payload" else message) is made


def test_a_payload_that_is_no_object() -> None:
    """Whoever asks for a dict gets a dict or an error that needs no retry."""
    with pytest.raises(InvalidPayloadError, match="list, and the handler asks for a dict"):
        bind(payload).build(MessageEnvelope(topic="t", payload=[1]))


def test_what_is_not_callable() -> None:
    """The error names it."""
    with pytest.raises(ConfigurationError, match="not callable"):
        bind("handler")  # type: ignore[arg-type]
