"""Failpoints: inert unless switched on, and each at one place."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from semel.errors import ConfigurationError
from semel.failpoints import FAILPOINTS, failpoint, switched_on


def placed() -> Iterator[str]:
    """Yield the name of each failpoint in the code."""
    for path in Path(semel.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint":
                [name] = node.args
                assert isinstance(name, ast.Constant), path
                yield name.value


def test_each_is_in_the_code_once() -> None:
    assert dict.fromkeys(FAILPOINTS, 1) == Counter(placed())


def test_nothing_happens_unless_one_is_switched_on() -> None:
    passed: list[str] = []
    failpoint("relay.after_claim")
    with switched_on(passed.append):
        failpoint("relay.after_claim")
        failpoint("relay.after_fetch")
    failpoint("relay.after_claim")
    assert ["relay.after_claim", "relay.after_fetch"] == passed


def test_those_that_are_named() -> None:
    passed: list[str] = []
    with switched_on(passed.append, "relay.after_fetch"):
        failpoint("relay.after_claim")
        failpoint("relay.after_fetch")
    assert ["relay.after_fetch"] == passed


def test_an_unknown_name_is_an_error() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"no failpoint relay\.nowhere"),
        switched_on(print, "relay.nowhere", "relay.after_claim"),
    ):
        pass
