"""`python -m tests.chaos run` and its companions: processes, real servers, and harm."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.chaos.plan import Plan

ROOT = Path(__file__).parents[2]
DATABASES = ("sqlite", "postgres", "mariadb")
BUSES = ("database", "kafka", "rabbitmq", "nats", "redis")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="one run; prints what the checker says")
    run.add_argument("--minutes", type=float, default=1.0)
    run.add_argument("--seed", type=int, default=int(time.time()))
    run.add_argument("--database", choices=DATABASES, default="sqlite")
    run.add_argument("--bus", choices=BUSES, default="database")
    run.add_argument("--out", type=Path, help="the folder of the run; a new one in .chaos/runs")
    run.add_argument(
        "--shared", action="store_true", help="a database on the server of the tests: not killed"
    )
    run.set_defaults(command=_run)
    check = commands.add_parser("check", help="check the folders of runs")
    check.add_argument("folders", nargs="+")
    check.set_defaults(command=lambda given: _module("checker").main(given.folders))
    matrix = commands.add_parser("matrix", help="every layer, every database and bus")
    matrix.add_argument("--minutes", type=float, default=30.0)
    matrix.add_argument("--seed", type=int, default=int(time.time()))
    matrix.set_defaults(command=lambda given: _module("matrix").run(given.minutes, given.seed))
    others = {
        "report": "make RELIABILITY.md",
        "compare": "other designs, checked the same way",
        "export": "a run as EDN, for elle-cli",
    }
    for name, text in others.items():
        other = commands.add_parser(name, help=text, add_help=False)
        other.set_defaults(command=None, name=name)
    given, rest = parser.parse_known_args()
    if given.command is None:
        return int(_module(given.name).main(rest))
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return int(given.command(given))


def _module(name: str) -> Any:
    return import_module(f"tests.chaos.{name}")


def _run(given: argparse.Namespace) -> int:
    name = f"{given.database}-{given.bus}"
    folder = (given.out or ROOT / ".chaos" / "runs" / f"{name}-{given.seed}").resolve()
    plan = Plan(
        database=given.database,
        bus=given.bus,
        seed=given.seed,
        minutes=given.minutes,
        folder=folder,
        own=not given.shared,
    )
    asyncio.run(_guarded(plan))
    report = _module("checker").check(folder)
    violations = [*report.violations, *import_module("tests.model.rows").replay(folder).violations]
    print(*violations, sep="\n")
    print(f"chaos: {folder}: {len(violations)} violations")
    if given.out is None:
        _module("report").save(ROOT / ".chaos" / f"chaos-{name}.json", "chaos", report.figures)
    return 1 if violations else 0


async def _guarded(plan: Plan) -> None:
    """End cleanly at SIGTERM: children and servers are ours."""
    task = asyncio.ensure_future(_module("run").run(plan))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    sys.exit(main())
