"""The offline checker: twelve invariants over the folder that a chaos run left.

`python -m tests.chaos check FOLDER` prints what is violated, with the lines of the history that
led there, and the figures of the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import checker_messages as messages, checker_states as states
from tests.chaos.checker_figures import figures
from tests.chaos.checker_messages import Finding
from tests.chaos.checker_run import Run

INVARIANTS: Mapping[str, Callable[[Run], Iterator[Finding]]] = {
    "No loss": messages.no_loss,
    "No ghost": messages.no_ghost,
    "Effects exactly once": messages.effects_once,
    "Order": messages.order,
    "Integrity": messages.integrity,
    "State machine": states.state_machine,
    "Fencing": states.fencing,
    "Idempotency": states.idempotency,
    "Isolation": messages.isolation,
    "Liveness": states.liveness,
    "Bounded duplicates": states.bounded_duplicates,
    "No leak": states.no_leak,
}
_EXPLAINED = 5  # violations of an invariant that are shown with their history


@dataclass(frozen=True, slots=True)
class Report:
    """What a run violated, in sentences, and its figures."""

    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def check(folder: Path | str) -> Report:
    """Check all invariants of the run that left *folder*."""
    run = Run(Path(folder))
    violations: list[str] = []
    found: dict[str, int] = {}
    for name, invariant in INVARIANTS.items():
        findings = list(invariant(run))
        found[name] = len(findings)
        for number, finding in enumerate(findings):
            lines = run.around(*finding.names) if number < _EXPLAINED else []
            violations.append("\n    ".join([f"{name}: {finding.sentence}", *lines]))
    return Report(violations, figures(run, found))


def main(arguments: Sequence[str]) -> int:
    """Check the folders that are named; return 1 if any violates anything."""
    if not arguments:
        print("usage: python -m tests.chaos check FOLDER...", file=sys.stderr)
        return 2
    reports = {folder: check(folder) for folder in arguments}
    for folder, report in reports.items():
        print(f"{folder}: {len(report.violations)} violations")
        print(*report.violations, sep="\n")
        print(json.dumps(report.figures, indent=2))
    return int(any(report.violations for report in reports.values()))
