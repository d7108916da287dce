"""Strict JSON: what goes out can be read back by everybody."""

import dataclasses
import enum
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st

from semel.errors import SerializationError
from semel.serializers import JsonSerializer, loads_json

dumps = JsonSerializer().dumps
loads = JsonSerializer().loads


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal


@dataclasses.dataclass
class Order:
    lines: list[Line]


class Model(pydantic.BaseModel):
    at: datetime


class Struct(msgspec.Struct):
    name: str
    colour: Colour


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (None, b"null"),
        ({"a": [1, 2.5, True, None, "x"]}, b'{"a":[1,2.5,true,null,"x"]}'),
        ({"name": "Zoë 🎉"}, '{"name":"Zoë 🎉"}'.encode()),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), b'"2026-01-02T03:04:05.000006+00:00"'),
        (date(2026, 1, 2), b'"2026-01-02"'),
        (time(3, 4), b'"03:04:00"'),
        (Decimal("1.10"), b'"1.10"'),
        (UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        ([Colour.RED, Size.BIG], b'["red",3]'),
        ({"s": {3, 1, 2}}, b'{"s":[1,2,3]}'),
        (Order([Line("a", Decimal(2))]), b'{"lines":[{"sku":"a","price":"2"}]}'),
        (Model(at=datetime(2026, 1, 2, tzinfo=UTC)), b'{"at":"2026-01-02T00:00:00Z"}'),
        (Struct("a", Colour.RED), b'{"name":"a","colour":"red"}'),
    ],
)
def test_dumps(payload, body):
    """Plain values, dates, numbers, enums and models have one obvious form."""
    assert body == dumps(payload)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (float("nan"), "NaN"),
        ({"a": [float("inf")]}, "NaN"),
        (object(), "object is not JSON"),
        ({"a": b"bytes"}, "bytes is not JSON"),
        ({("a", 1): 2}, "keys"),
        (Line, "type is not JSON"),
        ("a\x00b", "NUL"),
        ({"a\x00": 1}, "NUL"),
        ("\\\x00", "NUL"),
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
    ],
)
def test_refuses(payload, text):
    """What JSON, a database or a broker would mangle raises, and says why."""
    with pytest.raises(SerializationError, match=text):
        dumps(payload)


def test_refuses_what_has_no_end():
    """Cycles and bottomless nesting raise, not the interpreter's RecursionError."""
    cycle: list = []
    cycle.append(cycle)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for payload in (cycle, deep):
        with pytest.raises(SerializationError, match="nested too deeply or refers to itself"):
            dumps(payload)


def test_error_hides_the_payload():
    """The text names types, never values."""
    with pytest.raises(SerializationError) as caught:
        dumps({"card": "4111-1111", "bad": object()})
    assert "4111" not in str(caught.value)
    with pytest.raises(SerializationError) as caught:
        loads(b'{"card": "4111-1111"')
    assert "4111" not in str(caught.value)


def test_text_that_looks_like_an_escaped_nul():
    """A backslash followed by u0000 is text, not a NUL."""
    assert loads(dumps("\\u0000")) == "\\u0000"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"nul", b"NaN", b"[Infinity]", b"\xff\xfe\xfd", b"[" * 100_000, b"1" * 5000]
)
def test_loads_refuses(data):
    """What is not strict JSON raises a SerializationError, whatever it is."""
    with pytest.raises(SerializationError, match="not valid JSON"):
        loads(data)


def test_loads_text():
    """Stored text decodes like bytes."""
    assert loads_json('{"a": 1}') == {"a": 1}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=10,
)


@given(values)
def test_round_trip(payload):
    """What was encoded decodes to the same, here and with any other JSON reader."""
    assert payload == loads(dumps(payload))
    assert payload == json.loads(dumps(payload))
