"""`make bench`: each question's answer beside its limit, measured in the same run."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.questions import NAMES
from benchmarks.runner import Absent, Bench
from semel.cli.work import collect_rarely

RESULTS = Path(__file__).parent / "results" / "latest.json"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=NAMES, help="ask this question only")
    parser.add_argument("--full", action="store_true", help="largest backlogs: takes an hour")
    parser.add_argument("--peers", action="store_true", help="measure other libraries, too")
    parser.add_argument("--scale", type=float, default=1.0, help="0.05: a twentieth of all sizes")
    parser.add_argument("--rounds", type=int, default=3, help="how many figures each side gets")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the answers are kept")
    return parser.parse_args()


async def _ask(bench: Bench, name: str) -> list[dict[str, Any]]:
    bench.answers = []
    with bench.asking(name):
        try:
            await import_module(f"benchmarks.questions.{name}").ask(bench)
        except Absent as reason:
            sys.stdout.write(f"\n{name}: {reason}\n")
    return [answer.as_dict() for answer in bench.answers]


def keep(name: str, answers: list[dict[str, Any]], path: Path) -> None:
    """Replace the answers; leave others as they are, such as those beside peers without peers."""
    known: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    kept = {each: [a for a in known if a.get("file") == each] for each in NAMES}
    asked = {answer["question"] for answer in answers}
    left = [answer for answer in kept[name] if answer["question"] not in asked]
    kept[name] = [{**answer, "file": name} for answer in answers] + left
    path.parent.mkdir(exist_ok=True)
    ordered = [answer for each in NAMES for answer in kept[each]]
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def main() -> None:
    """Ask, print a table per answer, keep the figures."""
    logging.disable(logging.WARNING)
    collect_rarely()  # as `semel run` and `semel relay` do
    given = _arguments()
    bench = Bench(scale=given.scale, rounds=given.rounds, full=given.full, peers=given.peers)
    facts = {
        "scale": given.scale,
        "full": given.full,
        "machine": machine.describe(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    missed = []
    for name in given.only or NAMES:
        answers = asyncio.run(_ask(bench, name))
        missed += [answer["question"] for answer in answers if answer["met"] is False]
        keep(name, [{**answer, **facts} for answer in answers], given.output)
    sys.stdout.write(f"\nkept in {given.output.name}; missed: {', '.join(missed) or 'nothing'}\n")


if __name__ == "__main__":
    main()
