"""`python -m tests.catalogue [--json FILE]`: write the page, tell the figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.catalogue.catalogue import PAGE, load
from tests.catalogue.page import count, page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.catalogue")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    catalogue = load()
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(catalogue))
    figures = count(catalogue)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"layer": "catalogue", **figures}, indent=2) + "\n")
    print(f"{figures['covered']} of {figures['modes']} failure modes have tests: {PAGE.name}")


if __name__ == "__main__":
    main()
