"""What an attacker, a broken producer or a bad disk may hand us."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings, strategies as st

from semel.errors import SemelError

F = TypeVar("F", bound=Callable[..., Any])

#: Stands for a payload or a secret: it must never be in an error.
CANARY = "CANARY-7f3"

_AWKWARD = (
    *("\x00", "\ud800", "\udfff", "\ufeff", "\u2028", "\x7f", "\r\n", "é", "😀", "%00", "%ff", "%"),
    *("\\u0000", '"', "'", "<b>", "../", "${x}", "NaN", "1e999", "-0", "٣", "null"),
)
texts = st.one_of(
    st.text(st.characters(codec=None, categories=None), max_size=40),
    st.lists(st.sampled_from(_AWKWARD), min_size=1, max_size=4).map("".join),
    st.sampled_from([255, 256, 300, 9000]).map(lambda n: "x" * n),
)
numbers = st.one_of(
    st.integers(),
    st.sampled_from([2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400]),
    st.floats(),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts, st.just(CANARY)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


def _nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


BOMBS = (
    *(b"", b"null", b"\xff\xfe", b"\x80", b'{"a":1,"a":2}', b'{"a":NaN}', b"[1e999]", b'"\\ud800"'),
    *(b'"\\u0000"', b"\xef\xbb\xbf{}", b"9" * 5000, b"[" * 100_000, _nested(500), _nested(5000)),
    *(b'{"a":' * 2000 + b"1" + b"}" * 2000, b"{" * 3000, b'"' + b"x" * 100_000, b"{}{}", b"{} x"),
)


def _written(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def documents(draw: st.DrawFn, whole: st.SearchStrategy[Any] = values) -> bytes:
    """JSON, JSON with damage, or no JSON at all."""
    kind = draw(st.sampled_from(["whole", "damaged", "damaged", "bytes", "bomb"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "bomb":
        return draw(st.sampled_from(BOMBS))
    data = _written(draw(whole))
    return data if kind == "whole" else damaged(data, draw(st.integers(0, 2**32)))


def damaged(data: bytes, seed: int) -> bytes:
    """Flip, cut, repeat, insert: what a few bytes more or less do."""
    chance = random.Random(seed)
    hurt = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(hurt))
        match chance.randrange(4):
            case 0 if at < len(hurt):
                hurt[at] ^= 1 << chance.randrange(8)
            case 1:
                del hurt[at : at + chance.randint(1, 8)]
            case 2:
                hurt[at:at] = chance.randbytes(chance.randint(1, 4))
            case _:
                hurt[at:at] = hurt[max(0, at - 8) : at]
    return bytes(hurt)


def fuzz(examples: int) -> Callable[[F], F]:
    """Always the same examples, so that a run does not depend on the run before."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def tells_nothing(error: SemelError, *secrets: str) -> None:
    """The text is one line that could go into a log, and repeats nothing that is secret."""
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) < 2000
    for secret in (CANARY, *secrets):
        assert secret not in text
