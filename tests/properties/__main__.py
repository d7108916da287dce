"""The machines for as long as one likes, on any database.

    python -m tests.properties --minutes 5 --database postgresql+asyncpg://... --json FILE

Without --database: SQLite, and the servers that SEMEL_TEST_POSTGRES_URL and
SEMEL_TEST_MARIADB_URL name, each with a fresh database. One that is given must be empty.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from tests.properties.machines import MACHINES, attack
from tests.properties.world import World, budget, world
from tests.services import BACKENDS, fresh_database, variable


def main() -> int:
    options = _arguments()
    began = time.monotonic()
    with ExitStack() as stack:
        worlds = {name: stack.enter_context(made) for name, made in _worlds(options, stack)}
        runs = [
            {"database": database, "machine": machine, "examples": 0, "steps": 0, "rounds": 0}
            for database in worlds
            for machine in MACHINES
        ]
        failures: list[dict[str, Any]] = []
        # Everything once, then as long as there is time; a machine that failed is done.
        active = list(runs)
        while active and (
            not runs[-1]["rounds"] or time.monotonic() - began < options.minutes * 60
        ):
            run = active.pop(0)
            if _round(run, worlds[run["database"]], options, failures):
                active.append(run)
    result = {
        "layer": "properties",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "examples": sum(run["examples"] for run in runs),
        "steps": sum(run["steps"] for run in runs),
        "runs": runs,
        "failures": failures,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['examples']} examples, {result['steps']} steps, {len(failures)} failures")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.properties", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--database", action="append", metavar="URL", default=[])
    parser.add_argument("--examples", type=int, default=10, help="in a round of one machine")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _worlds(options: argparse.Namespace, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    for url in options.database:
        yield make_url(url).get_backend_name(), world(url)
    if options.database:
        return
    for name, backend in BACKENDS.items():
        if backend.service is None or os.environ.get(variable(backend.service)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield name, _fresh(name, folder)


@contextmanager
def _fresh(backend: str, folder: Path) -> Iterator[World]:
    with fresh_database(backend, folder) as database, world(database.url) as made:
        yield made


def _round(
    run: dict[str, Any], world: World, options: argparse.Namespace, failures: list[dict[str, Any]]
) -> bool:
    world.examples = world.steps = 0
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            attack(run["machine"], world, budget(options.examples, options.steps))
    except Exception:  # noqa: BLE001  whatever it is, it is what was looked for
        text = traceback.format_exc() + said.getvalue()
        failures.append({"database": run["database"], "machine": run["machine"], "text": text})
        print(text, file=sys.stderr)
        return False
    finally:
        run["rounds"] += 1
        run["examples"] += world.examples
        run["steps"] += world.steps
    return True


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
