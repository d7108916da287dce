"""MariaDB, durable, in strict SQL mode; the user `semel` may do everything."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult, unquote

from .base import NotReadyError, Server, connect, find, receive

# Run at every start, so the account is right even in a data folder of an earlier version.
BOOTSTRAP = """\
CREATE DATABASE IF NOT EXISTS semel;
CREATE USER IF NOT EXISTS semel@'%' IDENTIFIED BY 'semel';
GRANT ALL PRIVILEGES ON *.* TO semel@'%' WITH GRANT OPTION;
"""
SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"


class MariaDB(Server):
    name = "mariadb"
    ports: ClassVar = {"main": 21306}
    packages = ("mariadb-server",)
    scheme = "mysql"
    user = "mysql"

    def installed(self) -> bool:
        return find("mariadbd") is not None and find("mariadb-install-db") is not None

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _temporary(self) -> Path:
        return self.folder / "tmp"

    def initialise(self) -> None:
        (self.folder / "bootstrap.sql").write_text(BOOTSTRAP)
        self.own(self._temporary)
        if self._data.exists():
            return
        draft = self.folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        self.run(
            *("mariadb-install-db", "--no-defaults", f"--datadir={self.own(draft)}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
            *("--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0"),
            f"--tmpdir={self._temporary}",
        )
        draft.replace(self._data)

    def command(self) -> Sequence[str | Path]:
        return [
            find("mariadbd") or "",
            "--no-defaults",
            f"--datadir={self._data}",
            # A server that starts removes all temporary tables there: of others, too, in /tmp.
            f"--tmpdir={self._temporary}",
            f"--init-file={self.folder / 'bootstrap.sql'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port()}",
            # Relative to the data folder: the path of a Unix socket may have 107 characters.
            "--socket=mariadb.sock",
            # Else the anonymous user of localhost is preferred to semel@'%'.
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            "--max-connections=200",
            "--performance-schema=OFF",
            "--character-set-server=utf8mb4",
            f"--sql-mode={SQL_MODE}",
        ]

    def address(self, port: int) -> str:
        return f"mysql://semel:semel@127.0.0.1:{port}/semel"

    def ping(self, url: SplitResult) -> None:
        client = shutil.which("mariadb") or shutil.which("mysql")
        if client is None:
            self._greet(url)
            return
        done = subprocess.run(
            [
                *(client, "--no-defaults", "--protocol=tcp", "--connect-timeout=3"),
                *(f"--host={url.hostname}", f"--port={url.port or 3306}"),
                *(f"--user={unquote(url.username or '')}", "--batch", "--skip-column-names"),
                *("--execute=SELECT 1", url.path[1:]),
            ],
            env={"MYSQL_PWD": unquote(url.password or "")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() != "1":
            raise NotReadyError(done.stderr.strip())

    @staticmethod
    def _greet(url: SplitResult) -> None:
        """A server that accepts work speaks first, with version 10 of its protocol."""
        with connect(url) as link:
            if receive(link, 5)[4] != 10:
                raise NotReadyError("the server does not accept connections yet")
