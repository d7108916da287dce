"""RELIABILITY.md, made from the figures of runs; nobody writes in it.

Each layer leaves a file in `.chaos/`. `python -m tests.chaos report` merges them, by name, into
`docs/reliability/results.json`, which is committed, and makes the page from that file and from
`docs/reliability/bugs.md`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.report_page import page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".chaos"
KEPT = ROOT / "docs" / "reliability" / "results.json"
BUGS = ROOT / "docs" / "reliability" / "bugs.md"
PAGE = ROOT / "RELIABILITY.md"
_PASSWORDS = re.compile(r"//[^/@\s\"]*@")

Result = Mapping[str, Any]


def save(path: Path, layer: str, figures: Result) -> None:
    """Write the figures of a run where `collect` finds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"layer": layer, "commit": _commit(), "date": _day(datetime.now(UTC).timestamp())}
    path.write_text(json.dumps(about | dict(figures), indent=2) + "\n")


def sign(path: Path) -> None:
    """Add to the figures of a layer that has just run of which commit they are."""
    if path.exists():
        about = {"commit": _commit(), "date": _day(path.stat().st_mtime)}
        path.write_text(json.dumps(about | json.loads(path.read_text()), indent=1) + "\n")


def collect(folder: Path = RESULTS) -> dict[str, Result]:
    """Return the results of a folder by the names of their files.

    A file that does not tell its layer is named after it: `crash-postgres.json`.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        about = {
            "layer": path.stem.partition("-")[0],
            "commit": _commit(),
            "date": _day(path.stat().st_mtime),
        }
        found[path.stem] = about | json.loads(_PASSWORDS.sub("//", path.read_text()))
    return found


def kept() -> dict[str, Result]:
    """Return the results that are committed."""
    results: dict[str, Result] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return results


def rendered() -> str:
    """Return the page that the committed results make."""
    bugs = [line for line in BUGS.read_text().splitlines() if line.startswith(("- ", "  "))]
    return page(kept(), bugs)


def main(arguments: Sequence[str] = ()) -> int:
    """Take over new results, and write the page."""
    merged = kept() | collect()
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(dict(sorted(merged.items())), indent=1) + "\n")
    PAGE.write_text(rendered())
    print(f"{PAGE.name}: {len(merged)} results")
    return 0


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
