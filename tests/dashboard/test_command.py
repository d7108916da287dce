"""`semel dashboard`: refuses to start open, serves, and ends on SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from semel.cli.dashboard import accounts
from semel.dashboard import ADMIN, hash_password
from semel.errors import ConfigurationError
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.dashboard.site import PASSWORD, basic

_HASH = hash_password(PASSWORD)


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "semel", "dashboard", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_does_not_start_open(storage: SqlAlchemyStorage) -> None:
    url = storage.engine.url.render_as_string()
    process = command("--database", url)
    _, said = process.communicate(timeout=60)

    assert 2 == process.returncode
    assert "--hash-password" in said


def test_it_serves_and_ends(storage: SqlAlchemyStorage, tmp_path: Path) -> None:
    """Users come from a file; a page that is open does not keep it from ending."""
    (tmp_path / "users").write_text(f"# people\n\nann admin {_HASH}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = command(
        *("--database", storage.engine.url.render_as_string(), "--http", address),
        SEMEL_DASHBOARD_USERS_FILE=str(tmp_path / "users"),
    )
    try:
        with httpx2.Client(base_url=f"http://{address}", timeout=30) as us:
            until = time.monotonic() + 60
            while True:
                try:
                    assert 401 == us.get("/").status_code
                    break
                except httpx2.TransportError:
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < until
                    time.sleep(0.1)
            us.headers["authorization"] = basic("ann")
            assert "Overview" in us.get("/").text
            assert 400 == us.get("/", headers={"host": "evil.example"}).status_code
            with us.stream("GET", "/live") as answer:
                assert 200 == answer.status_code
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=30)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "graceful shutdown exceeded" not in process.communicate()[1]
    finally:
        process.kill()
        process.wait()


def test_users() -> None:
    everybody, some = accounts(f"ann admin {_HASH}\nben viewer {_HASH} acme globex")

    assert (ADMIN, None) == (everybody.actions, everybody.tenants)
    assert frozenset({"acme", "globex"}) == some.tenants
    for wrong in ("ann", f"ann king {_HASH}", "ann admin"):
        with pytest.raises(ConfigurationError, match="line 1"):
            accounts(wrong)
    with pytest.raises(ConfigurationError) as told:
        accounts("ann admin plain-password")
    assert "plain-password" not in str(told.value)
