"""The same workloads and the same checker on other people's designs, with semel beside them.

Readers see so that the harness finds what it should. `python -m tests.chaos compare` needs
PostgreSQL, and the package index for the release of sagaz that is pinned in `peers/install.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.checker import Report
from tests.chaos.peers.inbox_run import InboxRun
from tests.chaos.peers.install import SAGAZ
from tests.chaos.peers.relay_run import RelayRun
from tests.chaos.report import RESULTS, save

_COUNTED = (
    *("messages", "crashes", "lost", "ghosts", "double_effects", "out_of_order"),
    *("wire_duplicates", "dead"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A design under attack; *flawed*: a run that finds nothing there has failed."""

    name: str
    run: Callable[[Path, int], RelayRun | InboxRun]
    flawed: bool


def _relay(peer: str) -> Callable[[Path, int], RelayRun]:
    return lambda folder, seed: RelayRun(peer, folder, seed=seed, events=1000, deaths=4, outage=5.0)


def _inbox(peer: str, *groups: str) -> Callable[[Path, int], InboxRun]:
    return lambda folder, seed: InboxRun(
        peer, folder, seed=seed, messages=500, deaths=3, groups=groups
    )


_SAGAZ = SAGAZ.replace("[postgres]==", " ")
CASES = (
    Case("relay of document 001: SKIP LOCKED, PUBLISHING", _relay("seed"), flawed=True),
    Case("relay of semel", _relay("semel"), flawed=False),
    Case(f"inbox of {_SAGAZ}, one consumer", _inbox("sagaz", "books"), flawed=True),
    Case(
        f"inbox of {_SAGAZ}, two consumers in a database",
        _inbox("sagaz", "books", "audit"),
        flawed=True,
    ),
    Case(
        "inbox of semel, two consumers in a database",
        _inbox("semel", "books", "audit"),
        flawed=False,
    ),
)


def figures_of(name: str, report: Report) -> dict[str, Any]:
    """Return what the comparison shows of one run."""
    counted = {each: report.figures[each] for each in _COUNTED}
    return {"design": name} | counted | {"dead": sum(counted["dead"].values())}


def main(arguments: Sequence[str] = ()) -> int:
    """Run all cases; fail if semel violates anything, or a flawed design nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos compare")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "compare.json")
    chosen = parser.parse_args(list(arguments))
    rows, wrong = [], []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = asyncio.run(case.run(Path(folder), chosen.seed).run())
            except subprocess.CalledProcessError as error:
                print(f"{case.name}: cannot be installed here ({error}); nothing is saved")
                return 1
        rows.append(figures_of(case.name, report))
        print(rows[-1])
        if bool(report.violations) != case.flawed:
            wrong.append("\n".join([f"{case.name}: unexpected", *report.violations[:5]]))
    save(chosen.out, "compare", {"seed": chosen.seed, "designs": rows})
    print(*wrong, sep="\n")
    return int(bool(wrong))
