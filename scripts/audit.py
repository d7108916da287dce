"""Asks PyPI's advisories about every version in constraints.txt; fails if one has a known hole.

Without a way to the advisories it says so in one line and passes: a laptop on a train can lint.
With AUDIT=required, as for a release, that fails too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"


def main() -> int:
    looked_at = [each for each in advisories() if "skip_reason" not in each]
    holes = [(each, hole) for each in looked_at for hole in each["vulns"]]
    for each, hole in holes:
        fixed = ", ".join(hole["fix_versions"]) or "no version"
        print(f"audit: {each['name']} {each['version']}: {hole['id']}, fixed in {fixed}")
    if holes:
        return 1
    total = sum("==" in line for line in PINS.read_text().splitlines())
    if len(looked_at) == total:
        print(f"audit: no known hole in {total} packages")
        return 0
    print(
        f"audit: PyPI's advisories could be asked about {len(looked_at)} of {total} packages only"
    )
    return int(os.environ.get("AUDIT") == "required")


def advisories() -> list[dict[str, Any]]:
    """Return what pip-audit was told about each package; nothing if it was told nothing."""
    command = ["--requirement", str(PINS), "--no-deps", "--disable-pip", "--format", "json"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *command, "--progress-spinner", "off"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        return json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []


if __name__ == "__main__":
    sys.exit(main())
