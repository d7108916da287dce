"""A copy of the tree in which bugs are planted and tests are run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.bug import Bug

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("src", "tests", "examples", "docs", "scripts", "deploy", "benchmarks")
_FILES = ("pyproject.toml", "Makefile", "README.md", "constraints.txt")
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_PASSED = re.compile(r"^PASSED (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a call of pytest."""

    code: int
    output: str
    seconds: float

    @property
    def failed(self) -> str | None:
        """The test that failed; errors of collection are not failures of a test."""
        found = _FAILED.search(self.output)
        return found[1] if self.code == 1 and found else None

    @property
    def passed(self) -> set[str]:
        """The tests that passed: neither failed nor skipped."""
        return set(_PASSED.findall(self.output))


class Workbench:
    """A copy of the tree at *root*."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in _FOLDERS:
            if (_ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "node_modules", "images")
                shutil.copytree(_ROOT / name, root / name, ignore=ignored)
        for name in _FILES:
            shutil.copy(_ROOT / name, root / name)
        self._original = root / "original"
        shutil.copytree(root / "src", self._original)

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """Have *bug* in the copy, until the end of the block."""
        try:
            bug.apply(self.root)
            self._forget(bug)
            yield
        finally:
            for edit in bug.edits:
                source = self._original / "semel" / edit.file
                shutil.copyfile(source, self.root / "src" / "semel" / edit.file)
            self._forget(bug)

    def _forget(self, bug: Bug) -> None:
        """Remove what Python has compiled: it tells versions apart by second and size only."""
        for edit in bug.edits:
            path = self.root / "src" / "semel" / edit.file
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()

    def run(self, *tests: str, seconds: float) -> Run:
        """Run *tests* in the copy; one that takes longer than *seconds* fails."""
        began = time.monotonic()
        options = ("-q", "-rfp", "-p", "no:cacheprovider", "--timeout", f"{seconds:.0f}")
        limit = len(tests) * seconds + 30
        try:
            done = self._python("-m", "pytest", *options, *tests, seconds=limit)
        except subprocess.TimeoutExpired:
            return Run(-1, f"no end within {limit:.0f} s", time.monotonic() - began)
        return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - began)

    def _python(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            timeout=seconds,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def workbench() -> Iterator[Workbench]:
    """Give a copy of the tree, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="semel-mutants-") as folder:
        yield Workbench(Path(folder))
