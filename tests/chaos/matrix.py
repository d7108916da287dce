"""Everything that takes long: the other layers, then chaos on databases times buses."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.report import sign

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".chaos"
PAIRS = (
    *(("postgres", "kafka"), ("mariadb", "rabbitmq"), ("sqlite", "database")),
    *(("postgres", "nats"), ("mariadb", "redis"), ("postgres", "database")),
    *(("mariadb", "database"), ("postgres", "rabbitmq"), ("mariadb", "kafka")),
    *(("sqlite", "nats"), ("postgres", "redis"), ("mariadb", "nats")),
)
_AROUND = 0.6  # minutes in which a run starts servers, settles and checks


def layers(minutes: float) -> list[tuple[str, ...]]:
    """Name, module and arguments of what runs before, for a matrix of so many minutes."""
    found: list[tuple[str, ...]] = [
        ("simulation", "tests.simulation", f"--minutes={minutes * 0.12:.2f}", "--json")
    ]
    found += [
        (f"crash-{database}", "tests.crash", f"--database={database}", "--json")
        for database in ("sqlite", "postgres", "mariadb")
    ]
    found.append(("properties", "tests.properties", f"--minutes={minutes * 0.1:.2f}", "--json"))
    found.append(("model", "tests.model", "--json"))
    found.append(("compare", "tests.chaos", "compare", "--out"))
    return found


def run(minutes: float, seed: int) -> int:
    """Run all of it; return how much of it failed."""
    RESULTS.mkdir(exist_ok=True)
    until = time.monotonic() + minutes * 60
    failed = []
    for name, module, *options in layers(minutes):
        path = RESULTS / f"{name}.json"
        path.unlink(missing_ok=True)
        if _call(name, module, *options, str(path)):
            failed.append(name)
        sign(path)
    each = max(0.5, (until - time.monotonic()) / 60 / len(PAIRS) - _AROUND)
    for number, (database, bus) in enumerate(PAIRS):
        options = [f"--database={database}", f"--bus={bus}", f"--seed={seed + number}"]
        name = f"{database}-{bus}"
        if _call(name, "tests.chaos", "run", *options, f"--minutes={each:.2f}"):
            failed.append(name)
    print(f"chaos: {len(failed)} failed {' '.join(failed)}")
    return len(failed)


def _call(name: str, module: str, *options: str) -> int:
    began = time.monotonic()
    print(f"chaos: {name} ...", flush=True)
    status = subprocess.call([sys.executable, "-m", module, *options], cwd=ROOT)
    told = "ok" if status == 0 else f"FAILED ({status})"
    print(f"chaos: {name} {told} after {time.monotonic() - began:.0f} s", flush=True)
    return status
