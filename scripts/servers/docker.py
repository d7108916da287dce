"""The same servers as containers, where a Docker engine answers."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from .base import ServiceError

COMPOSE_FILE = Path(__file__).resolve().parents[2] / "compose.yaml"


@functools.cache
def _command() -> tuple[str, ...] | None:
    """How compose is called here; None without an engine or without compose."""
    if shutil.which("docker") is None or not _succeeds("docker", "info"):
        return None
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) is not None and _succeeds(*command, "version"):
            return command
    return None


def available() -> bool:
    return _command() is not None


def compose(*arguments: str) -> str:
    command = _command()
    if command is None:
        raise ServiceError("the Docker engine does not answer any more")
    done = subprocess.run(
        [*command, "--file", str(COMPOSE_FILE), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "".join(f"\n    {line}" for line in done.stdout.splitlines()[-15:])
        raise ServiceError(f"docker compose {' '.join(arguments)} failed{tail}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=15,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
