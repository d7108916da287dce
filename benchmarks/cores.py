"""Who uses the machine's cores while something runs."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OURS = "relay"
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """Processor seconds by program, and those that there were."""

    def __init__(self) -> None:
        self.by_program: Counter[str] = Counter()
        self.available = 0.0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count what is used inside."""
        before, began = _seconds(), time.perf_counter()
        try:
            yield
        finally:
            self.available += (time.perf_counter() - began) * (os.cpu_count() or 1)
            for pid, (program, seconds) in _seconds().items():
                self.by_program[program] += max(0.0, seconds - before.get(pid, ("", 0.0))[1])

    def __str__(self) -> str:
        shares = {name: used / self.available for name, used in self.by_program.most_common(4)}
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01)
        return f"{self.by_program.total() / self.available:.0%} of the cores were busy: {told}."


def _seconds() -> dict[int, tuple[str, float]]:
    """Return the name of each process, and how long it has been on a core."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        pid, fields = int(folder.name), rest.split()
        name = _OURS if pid == os.getpid() else head.partition("(")[2]
        found[pid] = (name, (int(fields[11]) + int(fields[12])) / _TICKS)
    return found
