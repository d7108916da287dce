"""Debian packages, installed without starting the services they bring."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .base import ServiceError

POLICY = Path("/usr/sbin/policy-rc.d")
DENY = "#!/bin/sh\nexit 101\n"


def possible() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str], log: Path) -> None:
    with _no_automatic_start():
        if _apt("install", *packages, log=log):
            return
        # The lists may be absent or old; they are fetched only then.
        if _apt("update", log=log) and _apt("install", *packages, log=log):
            return
    tail = "".join(f"\n    {line}" for line in log.read_text(errors="replace").splitlines()[-15:])
    raise ServiceError(f"apt-get could not install {' '.join(packages)}{tail}")


@contextlib.contextmanager
def _no_automatic_start() -> Iterator[None]:
    saved = POLICY.with_name("policy-rc.d.semel")
    if POLICY.exists() and not saved.exists():
        POLICY.replace(saved)
    POLICY.write_text(DENY)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        if saved.exists():
            saved.replace(POLICY)
        else:
            POLICY.unlink()


def _apt(action: str, *packages: str, log: Path) -> bool:
    options = ["-y", "--no-install-recommends"] if action == "install" else []
    with log.open("ab") as output:
        done = subprocess.run(
            ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", action, *options, *packages],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode == 0
