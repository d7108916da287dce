"""Workers answer to probes and to Prometheus."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from semel.cli.http import serving
from semel.errors import ConfigurationError
from semel.hub import Hub
from semel.observer import CombinedObserver, NullObserver
from semel.prometheus import PrometheusObserver
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import metadata
from semel.transports.memory import InMemoryMessageBus

SOURCE = Path(__file__).parents[2] / "src"


async def get(port: int | None, path: str, **headers: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", "host: probe", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = (await asyncio.wait_for(reader.read(), 20)).decode()
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


@pytest.fixture
async def storage(tmp_path: Path):
    async with SqlAlchemyStorage(f"sqlite+aiosqlite:///{tmp_path}/http.db") as storage:
        await storage.initialize()
        yield storage


async def test_probes(storage: SqlAlchemyStorage) -> None:
    """Alive also without a table, ready when all is there, and nothing else is told."""
    hub = Hub("shop", storage=storage, bus=InMemoryMessageBus())
    async with serving(hub, "127.0.0.1:0") as port:
        async with storage.engine.begin() as connection:
            await connection.execute(text("DROP TABLE outbox_control"))
        assert 200 == (await get(port, "/livez"))[0]
        assert 503 == (await get(port, "/readyz"))[0]
        async with storage.engine.begin() as connection:
            await connection.run_sync(metadata.drop_all)
        await storage.initialize()
        async with hub.running(), asyncio.timeout(30):
            while (await get(port, "/readyz"))[0] != 200:
                await asyncio.sleep(0.05)
        assert 404 == (await get(port, "/metrics"))[0]
        assert 404 == (await get(port, "/"))[0]
    with pytest.raises(OSError, match=r"refused|[Cc]onnect"):
        await get(port, "/livez")


@pytest.mark.parametrize("combined", [False, True])
async def test_metrics(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch, combined: bool
) -> None:
    """Those of the hub's observer; with a token, only to who knows it."""
    prometheus = PrometheusObserver(CollectorRegistry())
    observer = CombinedObserver(NullObserver(), prometheus) if combined else prometheus
    hub = Hub("shop", storage=storage, bus=InMemoryMessageBus(), observer=observer)
    prometheus.count("outbox_published_total", 3, topic="orders", transport="memory")
    async with serving(hub, "127.0.0.1:0") as port:
        status, body = await get(port, "/metrics")
        assert 200 == status
        assert 'outbox_published_total{topic="orders",transport="memory"} 3.0' in body
    monkeypatch.setenv("SEMEL_METRICS_TOKEN", "canary")
    async with serving(hub, "127.0.0.1:0") as port:
        assert 401 == (await get(port, "/metrics"))[0]
        assert 200 == (await get(port, "/metrics", authorization="Bearer canary"))[0]
        assert 200 == (await get(port, "/livez"))[0]


@pytest.mark.parametrize("where", ["8080", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999"])
async def test_addresses_that_are_none(storage: SqlAlchemyStorage, where: str) -> None:
    hub = Hub("shop", storage=storage, bus=InMemoryMessageBus())
    with pytest.raises(ConfigurationError, match=r"--http takes|cannot listen"):
        async with serving(hub, where):
            raise AssertionError


async def test_a_port_that_is_taken(storage: SqlAlchemyStorage) -> None:
    hub = Hub("shop", storage=storage, bus=InMemoryMessageBus())
    async with serving(hub, "127.0.0.1:0") as port:
        with pytest.raises(ConfigurationError, match="cannot listen"):
            async with serving(hub, f"127.0.0.1:{port}"):
                raise AssertionError


async def test_the_command_serves_and_ends(storage: SqlAlchemyStorage, tmp_path: Path) -> None:
    """`semel run --http`: ready while it runs, gone on SIGTERM."""
    (tmp_path / "worker.py").write_text(
        "from semel import Hub, InMemoryMessageBus, SqlAlchemyStorage\n"
        f"storage = SqlAlchemyStorage({str(storage.engine.url)!r})\n"
        "hub = Hub('shop', storage=storage, bus=InMemoryMessageBus())\n"
    )
    async with serving(Hub("x", storage=storage), "127.0.0.1:0") as port:
        pass  # it was free a moment ago
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "semel", "run", "worker:hub", "--http", f"127.0.0.1:{port}"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    if (await get(port, "/readyz"))[0] == 200:
                        break
                except OSError:
                    assert process.returncode is None
                await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert 0 == await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
