"""A PgBouncer of the test's own, in transaction or session mode."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url


@contextmanager
def pooler(url: str, folder: Path, *, mode: str) -> Iterator[str]:
    """Return the address by which *url* is reached through a pooler."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("no pgbouncer, see `scripts/services up`", pytrace=False)
        pytest.skip("no pgbouncer")
    server = make_url(url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        "[databases]\n"
        f"* = host={server.host} port={server.port or 5432} user={server.username} "
        f"password={server.password}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\npool_mode = {mode}\nignore_startup_parameters = extra_float_digits\n"
    )
    settings.chmod(0o644)
    for parent in (folder, *folder.parents[:3]):  # it runs as somebody else
        if parent.stat().st_uid == os.getuid() and parent != Path("/tmp"):
            parent.chmod(0o755)
    user = ["-u", "nobody"] if os.getuid() == 0 else []
    process = subprocess.Popen(
        [program, "-q", *user, str(settings)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        _wait(port, process)
        yield server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"pgbouncer ended: {process.stdout.read()!r}")
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("pgbouncer does not listen")
