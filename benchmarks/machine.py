"""Where it was measured."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.services import variable, version as server_version

_LIBRARIES = (
    *("sqlalchemy", "asyncpg", "asyncmy", "aiosqlite", "confluent-kafka", "aio-pika"),
    *("nats-py", "redis", "fastapi"),
)


def describe() -> dict[str, object]:
    """Cores, memory and versions; no name of the machine."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    for name in ("postgres", "mariadb"):
        if os.environ.get(variable(name)):
            with suppress(Exception):
                versions[f"{name} server"] = server_version(name)
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(_memory() / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            return int(line.split()[1]) * 1024
    return 0
