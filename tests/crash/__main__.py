"""`python -m tests.crash --json FILE [--database sqlite|postgres|mariadb]`: the whole sweep."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.crash.bugs import BUGS
from tests.crash.sweep import STORIES, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--database", default="sqlite", help="a backend of tests/services.py")
    parser.add_argument("--story", action="append", choices=list(STORIES))
    parser.add_argument("--failpoint", action="append", help="only these")
    parser.add_argument("--everywhere", action="store_true", help="all failpoints in all stories")
    parser.add_argument("--once", action="store_true", help="each failpoint in one story")
    parser.add_argument("--most", type=int, help="passes of each failpoint; all unless told")
    parser.add_argument("--deaths", type=int, default=1, help="at each point, one after the other")
    parser.add_argument("--bug", choices=list(BUGS), help="plant a bug, which must be found")
    chosen = parser.parse_args()
    only = {"failpoints": chosen.failpoint} if chosen.failpoint else {}
    figures = sweep(
        chosen.database,
        stories=chosen.story or list(STORIES),
        everywhere=chosen.everywhere,
        once=chosen.once,
        most=chosen.most,
        deaths=chosen.deaths,
        bug=chosen.bug,
        **only,
    )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    told = {name: value for name, value in figures.items() if name != "violations"}
    print(json.dumps(told))
    for violation in figures["violations"]:
        print(json.dumps(violation), file=sys.stderr)
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
