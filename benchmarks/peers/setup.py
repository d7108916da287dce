"""An environment per peer, kept in .cache/peers; `python -m benchmarks.peers` makes them all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runner import Absent

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "peers"
# For gruelbox, which is Java.
JARS = (
    "com.gruelbox:transactionoutbox-core:4.2.268",
    "org.postgresql:postgresql:42.7.4",
    "com.zaxxer:HikariCP:6.2.1",
    "org.slf4j:slf4j-nop:1.7.36",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A library, the packages that it needs, and what its driver can do."""

    name: str
    requirements: tuple[str, ...] = ()
    verbs: tuple[str, ...]
    python: tuple[int, int] = (3, 11)

    @property
    def driver(self) -> Path:
        return Path(__file__).parent / f"{self.name.replace('-', '_')}_driver.py"


PEERS = (
    Peer(
        name="faststream-outbox",
        requirements=("faststream-outbox[asyncpg]==0.19.0",),
        verbs=("relay", "write"),
    ),
    Peer(
        name="txoutbox",
        requirements=("txoutbox[postgres]==0.2.2",),
        verbs=("relay", "hot", "write"),
    ),
    Peer(
        name="sagaz",
        requirements=("sagaz==1.5.0", "asyncpg==0.32.0"),
        verbs=("relay", "write"),
    ),
    Peer(
        name="python-cqrs",
        requirements=("python-cqrs[sqlalchemy]==5.3.0", "asyncpg==0.32.0", "pydantic==2.14.3"),
        verbs=("relay", "write"),
    ),
    Peer(
        name="omni-box",
        requirements=("omni-box[postgres]==0.3.1",),
        verbs=("relay", "hot", "write"),
        python=(3, 12),
    ),
    Peer(
        name="seed-relay",
        requirements=("sqlalchemy[asyncio]==2.1.8", "asyncpg==0.32.0"),
        verbs=("relay", "write"),
    ),
    Peer(name="gruelbox", verbs=("relay",)),
    Peer(
        name="idemkit",
        requirements=(
            "idemkit==1.0.2",
            "asyncpg==0.32.0",
            "fastapi==0.162.4",
            "sqlalchemy[asyncio]==2.1.8",
        ),
        verbs=("requests",),
    ),
)


def command_of(name: str) -> list[str]:
    """The command that runs a peer's driver; `Absent` if it cannot be run here."""
    peer = next(peer for peer in PEERS if peer.name == name)
    if not peer.requirements:
        return _java(peer)
    interpreter = _interpreter(peer.python)
    folder = CACHE / peer.name
    ready = folder / "requirements.txt"
    wanted = "\n".join(peer.requirements)
    if not ready.exists() or ready.read_text() != wanted:
        _run([interpreter, "-m", "venv", "--clear", str(folder)], f"no environment for {name}")
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", *peer.requirements]
        _run(pip, f"{name} could not be installed")
        ready.write_text(wanted)
    return [str(folder / "bin" / "python"), str(peer.driver)]


def _interpreter(least: tuple[int, int]) -> str:
    """A Python that a peer supports: ours, or one of the usual places."""
    if sys.version_info[:2] >= least:
        return sys.executable
    managed = sorted(Path.home().glob(".pyenv/versions/*/bin/python3.*[0-9]"))
    for minor in range(least[1], 20):
        found = [path for path in managed if path.name == f"python3.{minor}"]
        other = shutil.which(f"python3.{minor}")
        if found or other:
            return str(found[0]) if found else str(other)
    raise Absent(f"needs Python {least[0]}.{least[1]}, which is not installed here")


def _java(peer: Peer) -> list[str]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from servers import maven
        from servers.base import ServiceError
    finally:
        sys.path.pop(0)
    if not maven.installed() or shutil.which("javac") is None:
        raise Absent("needs a JDK and Maven")
    try:
        jars = maven.class_path(peer.name, JARS)
    except ServiceError as error:
        raise Absent(str(error).splitlines()[0]) from None
    # Compiled: the outbox looks up the classes of its calls by name, which a script's are not.
    folder = CACHE / peer.name
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("Gruelbox.java")
    _run(["javac", "-cp", jars, "-d", str(folder), str(source)], "could not be compiled")
    return ["java", "-cp", f"{jars}{os.pathsep}{folder}", source.stem]


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Absent(f"{problem}: {lines[-1][:200]}")


def main() -> None:
    """Make all of them, and say which cannot be made here."""
    for peer in PEERS:
        try:
            command_of(peer.name)
        except Absent as reason:
            print(f"{peer.name}: {reason}")
        else:
            print(f"{peer.name}: ready")
