"""Every text that a page shows has a Chinese one."""

from __future__ import annotations

import json
import re

import pytest

from semel.dashboard.rendering import HERE
from semel.dashboard.texts import SCRIPT_TEXTS, texts
from semel.operations import ReasonKind, Verb

_CALL = re.compile(r"""\bt\((?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')(?=[,)])""")


def used() -> set[str]:
    found = set(SCRIPT_TEXTS)
    for template in (HERE / "templates").glob("*.html"):
        for double, single in _CALL.findall(template.read_text(encoding="utf-8")):
            found.add(double or single)
    found |= {f"verb {verb.value}" for verb in Verb}
    found |= {kind.value for kind in ReasonKind}
    steps = ("occurred", "committed", "due", "attempted", "dead", "again", "sent", "handled")
    found |= {f"step {step}" for step in steps}
    return found


def test_nothing_is_left_in_english() -> None:
    chinese = texts("zh").catalogue
    assert set() == used() - set(chinese)


def test_what_the_script_says_is_handed_to_it() -> None:
    script = (HERE / "static" / "app.js").read_text(encoding="utf-8")
    said = {double or single for double, single in _CALL.findall(script)}
    assert set() == said - set(SCRIPT_TEXTS)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_places_for_values_are_kept(language: str) -> None:
    for text, translation in texts(language).catalogue.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", translation)), text


def test_no_word_is_translated_twice() -> None:
    def check(pairs: list[tuple[str, str]]) -> dict[str, str]:
        assert len(pairs) == len({name for name, _ in pairs})
        return dict(pairs)

    for path in (HERE / "catalogues").glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=check)


def test_nothing_comes_from_elsewhere() -> None:
    """No page loads or links to anything outside."""
    for path in HERE.rglob("*"):
        if path.suffix in (".html", ".js", ".css"):
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://|//cdn|@import", text), path
