"""`python -m tests.chaos run|check|matrix|report`: processes, real servers, and harm."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.chaos.plan import Plan

ROOT = Path(__file__).parents[2]
DATABASES = ("sqlite", "postgres", "mariadb")
BUSES = ("database", "kafka", "rabbitmq", "nats", "redis")


def main() -> int:
    arguments = _parser().parse_args()
    result: int = arguments.command(arguments)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="one run; prints what the checker says")
    run.add_argument("--minutes", type=float, default=1.0)
    run.add_argument("--seed", type=int, default=None)
    run.add_argument("--database", choices=DATABASES, default="sqlite")
    run.add_argument("--bus", choices=BUSES, default="database")
    run.add_argument("--out", type=Path, default=None)
    run.add_argument(
        "--shared", action="store_true", help="a database on the server of the tests: not killed"
    )
    run.set_defaults(command=_run)
    check = commands.add_parser("check", help="check the folder of a run")
    check.add_argument("folder", type=Path)
    check.set_defaults(command=lambda given: _check(given.folder))
    return parser


def _run(given: argparse.Namespace) -> int:
    seed = int(time.time()) if given.seed is None else given.seed
    name = f"{given.database}-{given.bus}-{seed}"
    folder = (given.out or ROOT / ".chaos" / "runs" / name).resolve()
    plan = Plan(
        database=given.database,
        bus=given.bus,
        seed=seed,
        minutes=given.minutes,
        folder=folder,
        own=not given.shared,
    )
    asyncio.run(_guarded(plan))
    print(f"chaos: {folder}")
    return _check(folder)


async def _guarded(plan: Plan) -> None:
    """End cleanly at SIGTERM: children and servers are ours."""
    from tests.chaos.run import run

    task = asyncio.ensure_future(run(plan))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


def _check(folder: Path) -> int:
    report: Any = import_module("tests.chaos.checker").check(folder)
    for violation in report.violations:
        print(f"VIOLATION {violation}")
    print(f"chaos: {len(report.violations)} violations; {Counter(report.figures)}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
