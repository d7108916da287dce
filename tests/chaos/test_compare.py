"""The harness finds what other designs lose, and nothing in semel under the same attack."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos import compare
from tests.chaos.__main__ import main
from tests.chaos.compare import figures_of
from tests.chaos.peers.relay_run import RelayRun

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]


FLAWS = ("lost", "out_of_order", "dead")


def attack(peer: str, folder: Path, *, seed: int = 1) -> RelayRun:
    return RelayRun(peer, folder, seed=seed, events=150, deaths=1, outage=3.0, lease_seconds=2.0)


async def test_relay_of_document_001_loses_events_and_order(tmp_path: Path) -> None:
    """Rows of a dead relay stay PUBLISHING; a retry is overtaken; an outage uses up attempts."""
    found: Counter[str] = Counter()
    for seed in range(1, 7):  # what a kill hits depends on the machine's speed, too
        report = await attack("seed", tmp_path / str(seed), seed=seed).run()
        figures = figures_of("seed", report)
        assert 3 == figures["crashes"]
        stuck = [text for text in report.violations if "its outbox row is PUBLISHING" in text]
        assert len(stuck) == figures["lost"]
        found.update({flaw: figures[flaw] for flaw in FLAWS})
        if all(found[flaw] for flaw in FLAWS):
            break
    assert all(found[flaw] for flaw in FLAWS), found


async def test_semel_loses_nothing_under_the_same_attack(tmp_path: Path) -> None:
    report = await attack("semel", tmp_path).run()

    assert [] == report.violations
    assert 3 == report.figures["crashes"]
    assert {} == report.figures["dead"]


def test_its_options_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make chaos` gives them."""
    given: list[list[str]] = []

    def remember(arguments: list[str]) -> int:
        given.append(arguments)
        return 0

    monkeypatch.setattr(compare, "main", remember)
    monkeypatch.setattr("sys.argv", ["chaos", "compare", "--out", "here.json"])
    assert 0 == main()
    assert [["--out", "here.json"]] == given
