"""Run seeds: `python -m tests.simulation --seeds 0..500`, or replay one with `--seed`."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from tests.simulation.bugs import BUGS
from tests.simulation.world import Run, simulate

_AT_ONCE = 4


def main() -> int:
    options = _options()
    logging.disable(logging.CRITICAL)  # what happened is in the trace
    if options.plant:
        BUGS[options.plant].plant()
    started = time.monotonic()
    total, failed = _Total(), 0
    for run in _runs(options, started):
        total.add(run)
        if run.violations:
            failed += 1
            _report(run, options)
            if options.first:
                break
        elif options.seed is not None:
            print("\n".join(run.tail))
        if options.seed is not None:
            print(f"digest {run.digest}")
    print(total.sentence(time.monotonic() - started))
    if options.json:
        Path(options.json).write_text(json.dumps(total.as_json(), indent=2) + "\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print the end of its trace")
    parser.add_argument("--seeds", help="from .. to, the latter excluded (default: 0..500)")
    parser.add_argument("--steps", type=int, help="requests per seed (default: a few, by chance)")
    parser.add_argument("--minutes", type=float, help="new seeds for so long")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--plant", choices=sorted(BUGS), help="put a known bug into the code")
    parser.add_argument("--first", action="store_true", help="stop at the first violation")
    return parser.parse_args()


def _runs(options: argparse.Namespace, started: float) -> Iterator[Run]:
    work = partial(simulate, requests=options.steps)
    if options.seed is not None:
        yield work(options.seed)
        return
    # Seeds that nobody has run before, unless told.
    new = f"{time.time_ns() // 1_000_000}.."
    first, _, last = (options.seeds or ("0..500" if options.minutes is None else new)).partition(
        ".."
    )
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for begin in count(int(first), _AT_ONCE):
            end = begin + _AT_ONCE if not last else min(begin + _AT_ONCE, int(last))
            late = options.minutes is not None and time.monotonic() - started > options.minutes * 60
            if late or begin >= end:
                return
            yield from pool.map(work, range(begin, end))


def _report(run: Run, options: argparse.Namespace) -> None:
    more = f" --steps {options.steps}" if options.steps else ""
    more += f" --plant {options.plant}" if options.plant else ""
    print("\n".join(run.tail))
    for text in run.violations:
        print(f"seed {run.seed} violates {text}")
    print(f"replay it with: python -m tests.simulation --seed {run.seed}{more}\n", flush=True)


class _Total:
    """The figures of many runs."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.steps = 0
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        self.violations: list[dict[str, object]] = []

    def add(self, run: Run) -> None:
        self.seeds.append(run.seed)
        self.steps += run.steps
        self.seconds += run.seconds
        self.counts += run.counts
        if run.violations:
            self.violations.append({"seed": run.seed, "violations": run.violations})

    def sentence(self, seconds: float) -> str:
        return (
            f"{len(self.seeds)} seeds, {self.steps} steps, {self.seconds / 3600:.1f} simulated "
            f"hours in {seconds:.0f} s: {len(self.violations)} seeds with violations"
        )

    def as_json(self) -> dict[str, object]:
        return {
            "seeds": len(self.seeds),
            "first": min(self.seeds, default=None),
            "last": max(self.seeds, default=None),
            "steps": self.steps,
            "simulated_seconds": round(self.seconds),
            "happenings": dict(sorted(self.counts.items())),
            "violations": self.violations,
        }


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
