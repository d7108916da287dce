"""What every server has in common: a folder, ports, a process, and a way to ask if it is ready."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult, urlsplit

from . import process

DEFAULT_PORTS = {
    "postgresql": 5432,
    "mysql": 3306,
    "redis": 6379,
    "rediss": 6379,
    "nats": 4222,
    "tls": 4222,
    "amqp": 5672,
    "amqps": 5671,
    "kafka": 9092,
    "pulsar": 6650,
}


class ServiceError(Exception):
    """A server cannot be used; the text says why and what to do, in one line if possible."""


class NotReadyError(Exception):
    """The server answered, but not yet as one that is ready to work."""


@dataclass
class State:
    """What `up` started. Without it nothing is ours, and nothing is stopped."""

    how: str = ""
    pid: int = 0
    started: int = 0
    ports: dict[str, int] = field(default_factory=dict)
    # A process that the server needs beside it, such as Erlang's port mapper.
    helper_pid: int = 0
    helper_started: int = 0


class Server(ABC):
    name: ClassVar[str]
    ports: ClassVar[Mapping[str, int]]
    packages: ClassVar[Sequence[str]]
    scheme: ClassVar[str]
    user: ClassVar[str | None] = None
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout: ClassVar[float] = 60.0
    stop_timeout: ClassVar[float] = 30.0

    def __init__(self, root: Path) -> None:
        self.folder = root / self.name
        self.log = self.folder / "server.log"
        self._state_file = self.folder / "state.json"
        self.state = State()
        if self._state_file.exists():
            stored = json.loads(self._state_file.read_text())
            known = {each.name for each in fields(State)}
            self.state = State(**{key: stored[key] for key in known & set(stored)})

    @classmethod
    def variable(cls) -> str:
        return f"SEMEL_TEST_{cls.name.upper()}_URL"

    @abstractmethod
    def installed(self) -> bool:
        """Whether the programs that a native start needs are on this machine."""

    @abstractmethod
    def initialise(self) -> None:
        """Make the data folder, or leave the one that is there. Called before every start."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    def ping(self, url: SplitResult) -> None:
        """Connect and do something trivial; raise OSError or NotReadyError unless it worked."""

    def environment(self) -> Mapping[str, str]:
        return {}

    def address(self, port: int) -> str:
        return f"{self.scheme}://127.0.0.1:{port}"

    @property
    def url(self) -> str:
        """The server's URL: of the environment, else of the one we run or would run."""
        ports = self.ports if self.state.how == "docker" else {**self.ports, **self.state.ports}
        return os.environ.get(self.variable()) or self.address(ports["main"])

    def port(self, role: str = "main") -> int:
        return self.state.ports[role]

    def save(self, **changes: object) -> None:
        self.state = State(**{**asdict(self.state), **changes})
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self._state_file.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self.state)))
        draft.replace(self._state_file)

    # Readiness

    def answers(self, *, given: bool = False) -> bool:
        """Whether the server does what it is asked; for a given one, whether it is there.

        A server that is not ours may want TLS or a login of which we know nothing.
        """
        try:
            self._ping()
        except (OSError, NotReadyError):
            if not given:
                return False
        else:
            return True
        try:
            connect(self._parsed).close()
        except OSError:
            return False
        return True

    @property
    def _parsed(self) -> SplitResult:
        url = urlsplit(self.url)
        return url._replace(netloc=url.netloc.split(",")[0])

    def _ping(self) -> None:
        if self._parsed.scheme != self.scheme:
            raise NotReadyError(f"the scheme is not {self.scheme}")
        self.ping(self._parsed)

    def await_ready(self, child: subprocess.Popen[bytes] | None = None) -> None:
        deadline = time.monotonic() + self.start_timeout
        pause = 0.02
        while True:
            try:
                return self._ping()
            except (OSError, NotReadyError) as error:
                reason = str(error) or type(error).__name__
            if child is not None and child.poll() is not None:
                raise ServiceError(f"{self.name} ended with status {child.poll()}{self.log_tail()}")
            if time.monotonic() > deadline:
                tail = self.log_tail() if self.state.how == "native" else ""
                raise ServiceError(
                    f"{self.name} is not ready after {self.start_timeout:.0f} s: {reason}{tail}"
                )
            time.sleep(pause)
            pause = min(pause * 1.3, 0.25)

    def log_tail(self, lines: int = 15) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "".join(f"\n    {line}" for line in text.splitlines()[-lines:])

    # The native process

    def running(self) -> bool:
        return self.state.how == "native" and process.alive(self.state.pid, self.state.started)

    def start(self) -> None:
        self.own(self.folder)
        self._stop_helper()
        taken = {**self.ports, **self.state.ports}
        self.save(ports={role: process.free_port(port) for role, port in taken.items()})
        self.initialise()
        child = process.spawn(
            self.command(),
            folder=self.folder,
            log=self.log,
            user=self.user,
            environment=self.environment(),
        )
        self.save(how="native", pid=child.pid, started=process.start_time(child.pid) or 0)
        try:
            self.await_ready(child)
        except ServiceError:
            self.kill()
            raise

    def stop(self) -> bool:
        """Stop the native process. False when it had to be killed."""
        clean = process.stop(
            self.state.pid, self.state.started, self.stop_signal, self.stop_timeout
        )
        self._stop_helper()
        self.save(how="", pid=0, started=0)
        return clean

    def kill(self) -> None:
        process.kill(self.state.pid, self.state.started)
        process.kill(self.state.helper_pid, self.state.helper_started)
        self.save(pid=0, started=0, helper_pid=0, helper_started=0)

    def start_helper(self, command: Sequence[str | Path], log: str) -> None:
        child = process.spawn(
            command, folder=self.folder, log=self.folder / log, user=self.user, environment={}
        )
        self.save(helper_pid=child.pid, helper_started=process.start_time(child.pid) or 0)

    def _stop_helper(self) -> None:
        if self.state.helper_pid:
            process.stop(self.state.helper_pid, self.state.helper_started, signal.SIGTERM, 5.0)
            self.save(helper_pid=0, helper_started=0)

    # Helpers for the servers

    def own(self, folder: Path) -> Path:
        """Make a folder that belongs to the user the server runs as."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.user is not None and os.geteuid() == 0:
            shutil.chown(folder, self.user, self.user)
        return folder

    def run(self, *command: str | Path, text: str | None = None) -> None:
        """Run a set-up step as the server's user."""
        who = process.identity(self.user)
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env={**os.environ, **self.environment()},
            input=text or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            user=who.uid,
            group=who.gid,
            extra_groups=who.groups,
        )
        if done.returncode != 0:
            tail = "".join(f"\n    {line}" for line in done.stdout.splitlines()[-15:])
            raise ServiceError(f"{self.name}: {Path(command[0]).name} failed{tail}")


def find(program: str) -> str | None:
    """The program's path; servers are often where only root's PATH looks."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")


def connect(url: SplitResult, timeout: float = 3.0) -> socket.socket:
    port = url.port or DEFAULT_PORTS.get(url.scheme.split("+")[0])
    if url.hostname is None or port is None:
        raise OSError(f"no host and port in the URL of scheme {url.scheme}")
    return socket.create_connection((url.hostname, port), timeout)


def receive(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise OSError("the server closed the connection")
        data += part
    return bytes(data)
