"""The sweep itself: nothing breaks wherever the process dies, and planted bugs are found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel.failpoints import FAILPOINTS
from tests.services import service_url

ROOT = Path(__file__).parents[2]
# An order, another key, and the same key again.
_PASSES = 3
_PATIENCE = 840.0


def sweep(folder: Path, *arguments: str) -> dict[str, Any]:
    """Sweep in a process of its own, which has no threads and may fork."""
    told = folder / "figures.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash", "--json", str(told), *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(timeout=_PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers, if it was too slow
    figures: dict[str, Any] = json.loads(told.read_text())
    return figures


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE + 60)
@pytest.mark.parametrize(
    ("database", "bounds"),
    [
        pytest.param("sqlite", ["--most", str(_PASSES)], marks=pytest.mark.sqlite),
        pytest.param("postgres", ["--most", "1", "--once"], marks=pytest.mark.postgres),
        pytest.param("mariadb", ["--most", "1", "--once"], marks=pytest.mark.mariadb),
    ],
)
def test_nothing_breaks_wherever_the_process_dies(
    tmp_path: Path, database: str, bounds: list[str]
) -> None:
    """R01 to R04, C01, C05, I01, O01: nothing lost, no ghost, each effect once, in order."""
    if database != "sqlite":
        service_url(database)
    figures = sweep(tmp_path, "--database", database, *bounds)
    assert [] == figures["violations"]
    assert [] == figures["unreached"], "each failpoint is passed by a story that is about it"
    assert len(FAILPOINTS) == figures["failpoints"] <= figures["points"] == figures["crashes"]


@pytest.mark.timeout(_PATIENCE + 60)
@pytest.mark.parametrize(
    ("bug", "story", "failpoint", "kind"),
    [
        ("sent_before_it_is", "shop", "relay.before_publish", "lost"),
        ("inbox_without_memory", "letters", "consumer.before_ack", "twice"),
        ("answer_apart", "calls", "write.after_commit", "twice"),
    ],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, bug: str, story: str, failpoint: str, kind: str
) -> None:
    """The books are not blind: what each of them would cause is in them."""
    figures = sweep(tmp_path, "--story", story, "--failpoint", failpoint, "--bug", bug)
    found = {(each["kind"], each["failpoint"]) for each in figures["violations"]}
    assert (kind, failpoint) in found, figures
