"""How a command ends."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; `docs/reference/cli.md` tells the same."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    UNAVAILABLE = 3
    BUG = 70
    INTERRUPTED = 130
