"""Explore all cases, the large ones too, and say what was found."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.model.cases import BUGS, LARGE, SOUND
from tests.model.rows import replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--small", action="store_true", help="only what `make test` explores")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="check a chaos run's history")
    options = parser.parse_args()
    if options.replay is not None:
        retraced = replay(options.replay)
        print(f"{retraced.rows} rows, {retraced.moves} moves")
        print("\n".join(retraced.violations) or "all of them are moves of the model")
        return 1 if retraced.violations else 0
    cases = (*SOUND, *(() if options.small else LARGE), *BUGS)
    figures: list[dict[str, Any]] = []
    wrong = 0
    for case in cases:
        result = case.explore()
        found = result.violation or ""
        right = found.startswith(case.violation) if case.violation else not found
        wrong += not right
        print(f"{'' if right else 'WRONG: '}{case.name}: {result}", flush=True)
        figures.append(
            {
                "case": case.name,
                "bug": case.violation is not None,
                "right": right,
                "violation": result.violation,
                "way": result.way,
                "states": result.states,
                "steps": result.steps,
                "ends": result.ends,
                "seconds": round(result.seconds, 1),
            }
        )
    bugs = [figure for figure in figures if figure["bug"]]
    total = {
        "states": sum(figure["states"] for figure in figures),
        "steps": sum(figure["steps"] for figure in figures),
        "bugs": len(bugs),
        "bugs_found": sum(figure["right"] for figure in bugs),
        "wrong": wrong,
        "cases": figures,
    }
    print(f"{total['states']} states; found {total['bugs_found']} of {total['bugs']} known bugs")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(total, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
