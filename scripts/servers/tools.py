"""Programs that tests run, installed like the servers; nothing of them is started."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from . import apt
from .base import ServiceError, find

#: The program, and the Debian package that brings it.
TOOLS = {"promtool": "prometheus", "chromium": "chromium", "pgbouncer": "pgbouncer"}


def install(names: Collection[str], root: Path) -> list[str]:
    """Install what is missing; return one line about each that could not be."""
    missing = [name for name in TOOLS if name in names and find(name) is None]
    problems = []
    for name in missing:
        package = TOOLS[name]
        if not apt.possible():
            problems.append(
                f"{name:<9} MISSING  install {package} (as root on Debian this is done for you)"
            )
            continue
        try:
            apt.install([package], root / "apt.log")
        except ServiceError as error:
            problems.append(f"{name:<9} MISSING  {error}")
    return problems
