"""The page of the benchmark is what the generator makes of the answers that are kept."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import report
from benchmarks.__main__ import keep
from benchmarks.questions import NAMES
from benchmarks.runner import Absent, Answer, Bench, Side

ANSWERS = json.loads(report.RESULTS.read_text())


def test_page_and_charts_are_those_of_the_answers():
    """`python -m benchmarks.report` writes them."""
    page, images = report.build(ANSWERS)
    assert page == report.PAGE.read_text()
    assert images == {path.name: path.read_text() for path in report.IMAGES.glob("bench-*.svg")}


def test_every_question_has_an_answer_and_a_place_on_the_page():
    assert list(NAMES) == list(report.HEADINGS)
    assert set(NAMES) == {answer["file"] for answer in ANSWERS}
    names = [answer["question"] for answer in ANSWERS]
    assert len(names) == len(set(names))


def test_every_missed_target_has_its_reason():
    page = (report.PAGE.parent / "discussions" / "limits.md").read_text()
    headings = {
        line.removeprefix("## ").lower().replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("## ")
    }
    assert set(report.REASONS) == set(NAMES)
    assert set(report.REASONS.values()) == headings


def test_charts_are_well_formed():
    _, images = report.build(ANSWERS)
    for svg in images.values():
        assert ET.fromstring(svg).tag.endswith("svg")


def bench() -> Bench:
    return Bench(scale=1.0, rounds=3, full=False, peers=False)


async def test_sides_take_turns_and_the_first_round_is_discarded():
    calls: list[str] = []

    def side(name: str, figures: list[float]):
        left = iter(figures)

        async def measure() -> float:
            calls.append(name)
            return next(left)

        return measure

    sides = await bench().compare(
        {"a": side("a", [100, 1, 2, 3]), "b": side("b", [100, 4, 6, 5])}, unit="x/s"
    )
    assert ["a", "b", "b", "a", "a", "b", "b", "a"] == calls
    assert {"median": 2.0, "runs": [1.0, 2.0, 3.0], "unit": "x/s"} == sides["a"].as_dict()
    assert 5 == sides["b"].median


async def test_a_side_that_is_not_there_is_told_and_spoils_nothing(capsys):
    async def missing() -> float:
        raise Absent("needs Python 3.99")

    async def there() -> float:
        return 2.0

    run = bench()
    sides = await run.compare({"peer": missing, "semel": there})
    answer = run.answer("q", "A question", sides, "semel", "peer", 1.0)
    assert {"peer": "needs Python 3.99"} == answer.absent
    assert answer.ratio is None
    assert answer.met is None
    assert "absent: needs Python 3.99" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ratio", "at_most", "met"), [(0.7, False, True), (0.69, False, False), (0.71, True, False)]
)
def test_a_target_is_met_or_missed(ratio: float, at_most: bool, met: bool):
    answer = Answer(
        question="q",
        title="t",
        sides={"s": Side([1.0])},
        measured="s",
        against="l",
        ratio=ratio,
        target=0.7,
        at_most=at_most,
    )
    assert met is answer.met


def test_asking_one_question_again_leaves_the_others(tmp_path: Path):
    path = tmp_path / "latest.json"
    for name in ("inbox", "write"):
        keep(name, [{"question": name, "ratio": 1}], path)
    beside_peers = {"question": "write-peers", "ratio": 3}
    keep("write", [{"question": "write", "ratio": 1}, beside_peers], path)
    keep("write", [{"question": "write", "ratio": 2}], path)
    kept = [(answer["question"], answer["ratio"]) for answer in json.loads(path.read_text())]
    assert [("write", 2), ("write-peers", 3), ("inbox", 1)] == kept
