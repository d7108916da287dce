"""PostgreSQL, durable, with two-phase commit allowed; the user `semel` is its superuser."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult

from .base import NotReadyError, Server, connect, receive
from .process import start_time


class Postgres(Server):
    name = "postgres"
    ports: ClassVar = {"main": 21432}
    packages = ("postgresql",)
    scheme = "postgresql"
    user = "postgres"
    stop_signal = signal.SIGINT

    @staticmethod
    def _programs() -> Path | None:
        """Folder of the newest server; Debian keeps it off the PATH."""
        versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
        newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
        found = newest or shutil.which("initdb")
        return Path(found).resolve().parent if found else None

    def installed(self) -> bool:
        return self._programs() is not None

    @property
    def _program(self) -> Path:
        folder = self._programs()
        assert folder is not None
        return folder

    @property
    def _data(self) -> Path:
        # A server cannot read the files of another major version.
        version = subprocess.run(
            [self._program / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[2]
        return self.folder / f"data-{version.split('.')[0]}"

    def initialise(self) -> None:
        data = self._data
        if data.exists():
            self._forget_dead_server(data / "postmaster.pid")
            return
        draft = data.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        secret = self.folder / "password"
        secret.write_text("semel")
        secret.chmod(0o644)
        self.run(
            self._program / "initdb",
            *("--pgdata", draft, "--username", "semel", "--pwfile", secret),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"),
        )
        self.run(
            *(self._program / "postgres", "--single", "-D", draft, "postgres"),
            text="CREATE DATABASE semel;\n",
        )
        draft.replace(data)

    @staticmethod
    def _forget_dead_server(pid_file: Path) -> None:
        """PostgreSQL takes a killed server that nobody has reaped yet for a running one."""
        if pid_file.exists() and start_time(int(pid_file.read_text().split()[0])) is None:
            pid_file.unlink()

    def command(self) -> Sequence[str | Path]:
        settings = {
            "port": self.port(),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "max_connections": 200,
            "max_prepared_transactions": 20,
            "shared_buffers": "256MB",
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [self._program / "postgres", "-D", self._data, *options]

    def address(self, port: int) -> str:
        return f"postgresql://semel:semel@127.0.0.1:{port}/semel"

    def ping(self, url: SplitResult) -> None:
        client = shutil.which("psql")
        if client is None:
            self._greet(url)
            return
        done = subprocess.run(
            [client, url.geturl(), "-XAtqc", "SELECT 1"],
            env={"PGCONNECT_TIMEOUT": "3", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() != "1":
            raise NotReadyError(done.stderr.strip())

    @staticmethod
    def _greet(url: SplitResult) -> None:
        """A server that accepts work asks for a password; one that is starting up says so."""
        names = f"user\0{url.username or ''}\0database\0{url.path[1:]}\0\0".encode()
        with connect(url) as link:
            link.sendall(struct.pack("!II", len(names) + 8, 3 << 16) + names)
            if receive(link, 1) != b"R":
                raise NotReadyError("the server does not accept connections yet")
