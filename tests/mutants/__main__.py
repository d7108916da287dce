"""Plant each bug, run the tests that should find it, and say which do.

python -m tests.mutants [--only B4] [--json FILE] [--seconds 90]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.bug import Bug
from tests.mutants.catalogue import BUGS
from tests.mutants.workbench import Workbench, workbench


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a bug was found, by which test, and how long that took."""

    bug: Bug
    test: str | None
    seconds: float


def find(bench: Workbench, bug: Bug, *, seconds: float) -> Finding:
    """Run the tests of *bug*, one after the other, until one fails."""
    spent = 0.0
    with bench.planted(bug):
        for test in bug.found_by:
            run = bench.run(test, seconds=seconds)
            spent += run.seconds
            if run.failed is not None:
                return Finding(bug, run.failed, spent)
    return Finding(bug, None, spent)


def unsound(bench: Workbench, bugs: Sequence[Bug], *, seconds: float) -> list[str]:
    """Return the tests that do not pass without any bug: what they find proves nothing."""
    tests = list(dict.fromkeys(test for bug in bugs for test in bug.found_by))
    for _ in range(2):  # a busy machine may let one fail; none may fail twice
        if tests:
            passed = bench.run(*tests, seconds=seconds).passed
            tests = [test for test in tests if test not in passed]
    return tests


def report(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the figures of a run."""
    numbers = {finding.bug.number for finding in findings}
    missed = {finding.bug.number for finding in findings if finding.test is None}
    times = [finding.seconds for finding in findings if finding.test is not None]
    return {
        "bugs": len(numbers),
        "found": len(numbers - missed),
        "forms": len(findings),
        "forms_found": len(times),
        "median_seconds": round(statistics.median(times), 1) if times else None,
        "findings": [
            {
                "id": finding.bug.id,
                "bug": finding.bug.sentence,
                "found_by": finding.test,
                "seconds": round(finding.seconds, 1),
            }
            for finding in findings
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="B4 or B12a, one or several")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--seconds", type=float, default=90.0, help="limit of each test")
    options = parser.parse_args()
    wanted = {name.upper() for name in options.only or ()}
    bugs = [bug for bug in BUGS if not wanted or {bug.id.upper(), f"B{bug.number}"} & wanted]
    if not bugs:
        parser.error(f"no such bug; there are {', '.join(bug.id for bug in BUGS)}")
    with workbench() as bench:
        if broken := unsound(bench, bugs, seconds=options.seconds):
            print("without any bug these tests fail, or are skipped for want of a server:")
            print("\n".join(f"  {test}" for test in broken))
            return 2
        findings: list[Finding] = []
        for bug in bugs:
            finding = find(bench, bug, seconds=options.seconds)
            findings.append(finding)
            told = f"found by {finding.test}" if finding.test else "NOT FOUND"
            print(f"{bug.id:5} {bug.sentence}: {told} in {finding.seconds:.1f} s", flush=True)
    figures = report(findings)
    print(
        f"found {figures['found']} of {figures['bugs']}, median {figures['median_seconds']} s "
        f"({figures['forms_found']} of {figures['forms']} forms)"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["found"] == figures["bugs"] else 1


if __name__ == "__main__":
    sys.exit(main())
