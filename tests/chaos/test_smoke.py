"""A short run on each database: real processes and servers, every kind of harm, no violation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.crew import log_tail
from tests.model.rows import replay
from tests.services import service_url

ROOT = Path(__file__).parents[2]
MINUTES = 0.7
PAIRS = [
    pytest.param("sqlite", "database", marks=pytest.mark.sqlite),
    pytest.param("postgres", "nats", marks=[pytest.mark.postgres, pytest.mark.nats]),
    pytest.param("mariadb", "redis", marks=[pytest.mark.mariadb, pytest.mark.redis]),
]
#: What must have happened for the run to be worth anything.
ESSENTIAL = {"relay killed", "consumer killed", "api killed", "stopped beyond the lease"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("database", "bus"), PAIRS)
def test_chaos(database: str, bus: str, tmp_path: Path) -> None:
    """Nothing lost, nothing twice, order kept, nothing stuck, one execution per key."""
    for name in {database, bus} - {"sqlite", "database"}:
        service_url(name)  # the servers are the run's own, but their programs must be there
    folder = tmp_path / "run"
    done = _run(folder, database=database, bus=bus)
    if not (folder / "state.json").exists():
        pytest.fail(f"the run failed\n{done}\n{log_tail(folder)}", pytrace=False)
    report = check(folder)
    print(
        f"\n{database} and {bus}: {report.figures['messages']} events, {report.figures['faults']}"
    )
    assert [] == report.violations
    assert [] == replay(folder).violations  # each row moved as the model says
    assert report.figures["messages"] >= 50
    assert set(report.figures["faults"]) >= ESSENTIAL


def _run(folder: Path, **options: str) -> str:
    """Run the harness as a process of its own, which ends its children when it is told to."""
    given = [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.chaos", "run", "--seed=8", f"--minutes={MINUTES}"),
            *(f"--out={folder}", *given),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=540)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return output[-5000:]
