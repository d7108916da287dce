"""Processes we started: spawn, recognise again, stop, kill. Reads /proc, so Linux only."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (so ppid is [1] and the start time [19])."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which a living process started; None for a dead one.

    A pid is used again sooner or later, a pid with its start time is not. Where process 1 does
    not reap, a dead server stays a zombie for ever: it counts as dead.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def tree(pid: int) -> list[int]:
    """The process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, ()))
    return found


def spawn(
    command: Sequence[str | Path],
    *,
    folder: Path,
    log: Path,
    user: str | None,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, so that it outlives us and our terminal."""
    who = identity(user)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=who.uid,
            group=who.gid,
            extra_groups=who.groups,
        )


class Identity(NamedTuple):
    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] | None = None


def identity(user: str | None) -> Identity:
    """As whom subprocess runs a command; without root's rights there is no choice."""
    if user is None or os.geteuid() != 0:
        return Identity()
    entry = pwd.getpwnam(user)
    return Identity(entry.pw_uid, entry.pw_gid, ())


def stop(pid: int, started: int, sign: signal.Signals, timeout: float) -> bool:
    """Ask to stop, and kill when that takes too long. True when it stopped by itself."""
    if not alive(pid, started):
        return True
    os.kill(pid, sign)
    if _await_end([(pid, started)], timeout):
        return True
    kill(pid, started)
    return False


def kill(pid: int, started: int) -> None:
    """SIGKILL the server and its children, and return when they are gone."""
    if not alive(pid, started):
        return
    victims = [(each, birth) for each in tree(pid) if (birth := start_time(each)) is not None]
    for victim, birth in victims:
        if alive(victim, birth):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
    _await_end(victims, 10)


def _await_end(processes: Iterable[tuple[int, int]], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    for pid, started in processes:
        while alive(pid, started):
            if time.monotonic() > deadline:
                return False
            _reap(pid)
            time.sleep(0.02)
    return True


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(preferred: int) -> int:
    """The preferred port, or another below the ephemeral range.

    From inside that range a client that reconnects to a stopped server may be given the server's
    own port, connect to itself, and keep the server from starting again.
    """
    for port in range(preferred, 32_000, 1_000):
        if port_is_free(port):
            return port
    raise OSError(f"no free port near {preferred} on 127.0.0.1")
