"""The catalogue is complete, its tests exist, and the pages say what it says."""

from __future__ import annotations

import re

import pytest

from tests.catalogue.catalogue import PAGE, ROOT, SECTIONS, Row, exists, expected_ids, load
from tests.catalogue.page import count, page

CATALOGUE = load()
ROWS = [row for rows in CATALOGUE.values() for row in rows]
GUARANTEES = ROOT / "docs" / "guarantees.md"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_is_there(section: str) -> None:
    assert expected_ids(section) == [row.id for row in CATALOGUE[section]]


def test_there_are_144_failure_modes() -> None:
    figures = count(CATALOGUE)
    assert (144, 20) == (figures["modes"], figures["rules"])
    assert 144 == figures["covered"] + figures["explained"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_has_tests_or_a_reason(row: Row) -> None:
    """A sentence that says why is a sentence."""
    assert row.failure
    assert row.behaviour
    assert row.tests or len(row.gap.split()) >= 8
    assert not row.gap or row.gap.endswith(".")
    assert len(set(row.tests)) == len(row.tests)
    for test in row.tests:
        assert exists(test), test


@pytest.mark.parametrize(
    ("node", "there"),
    [
        ("tests/stores/test_inbox.py::TestInbox::test_rollback_forgets", True),
        ("tests/stores/test_inbox.py::TestInbox::test_nothing", False),
        ("tests/stores/test_inbox.py::test_rollback_forgets", False),
        ("tests/stores/test_gone.py::test_a", False),
        ("tests/catalogue/test_catalogue.py::exists", False),
        ("tests/catalogue/test_catalogue.py", False),
        ("src/semel/testing/contracts/inbox.py::InboxStoreContract::test_rollback_forgets", False),
    ],
)
def test_what_does_not_exist_is_noticed(node: str, there: bool) -> None:
    assert there is exists(node)


def test_the_page_is_current() -> None:
    """Otherwise run `python -m tests.catalogue`."""
    assert page(CATALOGUE) == PAGE.read_text()


def test_the_guarantees_name_tests_that_exist() -> None:
    text = GUARANTEES.read_text()
    named = re.findall(r"`(tests/[^`]+)`", text)

    assert len(named) > 50
    assert [] == [node for node in named if not exists(node)]


@pytest.mark.parametrize("number", range(1, 8))
def test_every_promise_is_in_the_guarantees(number: int) -> None:
    assert re.search(rf"^## {number}\. ", GUARANTEES.read_text(), re.MULTILINE)
