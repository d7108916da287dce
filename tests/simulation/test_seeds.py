"""Five hundred seeds, and the proof that a seed says it all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS

_ROOT = Path(__file__).parents[2]


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *options]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_seeds_keep_every_promise(tmp_path):
    figures = tmp_path / "figures.json"
    done = simulate("--seeds", "0..500", "--json", str(figures))
    assert 0 == done.returncode, done.stdout[-20_000:] + done.stderr[-5_000:]
    found = json.loads(figures.read_text())
    assert 500 == found["seeds"]
    # A simulation in which little happens proves little.
    for happening in ("crash", "freeze", "outage", "requeue", "arrived", "outcome", "handle"):
        assert 50 < found["happenings"][happening], happening


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly():
    alone, again = simulate("--seed", "7"), simulate("--seed", "7")
    assert 0 == alone.returncode, alone.stdout + alone.stderr
    assert alone.stdout.splitlines()[:-1] == again.stdout.splitlines()[:-1]  # the last has the time
    other = simulate("--seed", "8")
    assert _digest(other) != _digest(alone)


@pytest.mark.timeout(300)
def test_a_run_depends_on_nothing_that_ran_before():
    before = _digest(simulate("--seed", "3"))
    code = (
        "from tests.simulation.world import simulate as s; s(1); s(2); print('digest', s(3).digest)"
    )
    after = subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env={"PYTHONHASHSEED": "0", "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert before == _digest(after)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(BUGS))
def test_it_finds_a_planted_bug(name):
    done = simulate("--plant", name, "--seeds", "0..150", "--first")
    assert 1 == done.returncode, f"150 seeds passed with {name}\n{done.stdout}{done.stderr}"
    found = [
        line.split()[3].rstrip(":") for line in done.stdout.splitlines() if " violates " in line
    ]
    assert set(BUGS[name].found_by) & set(found), done.stdout[-5_000:]
    assert f"--plant {name}" in done.stdout  # how to replay it


def _digest(done: subprocess.CompletedProcess[str]) -> str:
    [digest] = [line for line in done.stdout.splitlines() if line.startswith("digest ")]
    return digest
