"""Probes in every state: what they answer, to whom, how soon, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from sqlalchemy import update
from starlette.applications import Starlette
from starlette.routing import Mount

from semel import ConfigurationError, Hub, InMemoryMessageBus, MessageEnvelope, SqlAlchemyStorage
from semel.asgi.health import health_app
from semel.errors import BusError
from semel.sqlalchemy.tables import OutboxControl
from semel.testing import FakeClock
from tests.proxy import Proxy
from tests.services import Database

PATIENCE = 30.0


def operator(scope: Any) -> bool:
    return (b"authorization", b"Bearer operator") in scope["headers"]


class Prober:
    """Asks the probes as Kubernetes would, and as an operator."""

    def __init__(self, hub: Hub, **options: Any) -> None:
        options = {"authorize": operator, "cache_seconds": 0, "timeout_seconds": 5, **options}
        transport = httpx2.ASGITransport(app=health_app(hub, **options))
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://test")

    async def ask(self, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        answer = await self.http.get(path, headers={"Authorization": "Bearer operator"})
        return answer.status_code, answer.json()

    async def until(self, condition: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the answer is as wanted."""
        status, document = await self.ask()
        async with asyncio.timeout(PATIENCE):
            while not condition(status, document):
                await asyncio.sleep(0.02)
                status, document = await self.ask()
        return document


def is_ready(status: int, _document: dict[str, Any]) -> bool:
    return status == 200


def fails(*checks: str) -> Callable[[int, dict[str, Any]], bool]:
    def condition(status: int, document: dict[str, Any]) -> bool:
        found = {name for name, check in document["checks"].items() if not check["ok"]}
        return status == 503 and found == set(checks)

    return condition


@asynccontextmanager
async def running(
    storage: SqlAlchemyStorage, bus: Any = None, **options: Any
) -> AsyncIterator[tuple[Hub, Prober]]:
    hub = Hub("shop", storage=storage, bus=bus or InMemoryMessageBus())

    @hub.on("orders", "OrderPlaced")
    async def handle(event: MessageEnvelope) -> None:
        if event.payload == "stuck":
            await asyncio.Event().wait()

    async with hub.running():
        yield hub, Prober(hub, **options)
        for consumer in hub.consumers.values():
            await consumer.stop(drain_seconds=0)


async def test_ready(semel_storage: SqlAlchemyStorage) -> None:
    """All is well: the status for everybody, the details for operators."""
    async with running(semel_storage) as (hub, prober):
        document = await prober.until(is_ready)
        async with hub.unit_of_work() as uow:
            await uow.outbox.add("orders", 1, event_type="OrderPlaced")
            await uow.commit()
        await hub.drain()
        _, after = await prober.ask()
        stranger = await prober.http.get("/readyz")
        live = await prober.http.get("/livez")

    assert ["database", "schema", "bus", "consumers", "projector"] == list(document["checks"])
    before = document["consumers"]["shop:orders"]
    assert (True, None, 0) == tuple(
        before[name] for name in ("is_healthy", "last_message_at", "error_count")
    )
    assert after["consumers"]["shop:orders"]["last_message_at"] is not None
    assert {"status": "ok"} == stranger.json() == live.json()
    assert "no-store" == stranger.headers["cache-control"]


async def test_database_away(postgres: Database) -> None:
    """Not ready within the time-out, whether it refuses or is silent; alive all the while."""
    async with Proxy.before(postgres.url) as proxy, SqlAlchemyStorage(postgres.url) as admin:
        await admin.initialize()
        async with running(SqlAlchemyStorage(proxy.url), timeout_seconds=1) as (_, prober):
            await prober.until(is_ready)
            proxy.refuse = True
            proxy.cut()
            refused = await prober.until(lambda _, found: not found["checks"]["database"]["ok"])
            assert 200 == (await prober.ask("/livez"))[0]
            proxy.refuse = False
            await prober.until(is_ready)
            proxy.blackhole = True
            async with asyncio.timeout(PATIENCE):
                silent = await prober.until(lambda _, found: not found["checks"]["database"]["ok"])
            assert 200 == (await prober.ask("/livez"))[0]
            stranger = await prober.http.get("/readyz")
            proxy.blackhole = False
            await prober.until(is_ready)

    assert "no answer within 1 seconds" == silent["checks"]["database"]["reason"]
    assert not refused["checks"]["schema"]["ok"]
    assert {"status": "unavailable"} == stranger.json()
    password = postgres.url.split(":")[2].split("@")[0]
    assert password not in str(refused) + str(silent)


async def test_old_schema(database: Database) -> None:
    """Tables of another version are noticed by a running process, with the command to run."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with running(storage) as (_, prober):
            await prober.until(is_ready)
            async with storage.engine.begin() as connection:
                await connection.execute(
                    update(OutboxControl)
                    .where(OutboxControl.name == "schema")
                    .values(value={"version": 0})
                )
            document = await prober.until(fails("schema"))

    assert "semel db upgrade" in document["checks"]["schema"]["reason"]
    assert document["checks"]["database"]["ok"]


async def test_bus_away(semel_storage: SqlAlchemyStorage) -> None:
    """Without the broker consumers are not connected; a process that only writes stays ready."""
    bus = InMemoryMessageBus()
    async with running(semel_storage, bus) as (hub, prober):
        writer = Prober(hub, required=["database", "schema"])
        await prober.until(is_ready)
        bus.faults.outage = True
        document = await prober.until(fails("bus", "consumers"))
        assert 200 == (await writer.ask())[0]
        assert 200 == (await prober.ask("/livez"))[0]
        bus.faults.outage = False
        await prober.until(is_ready)

    assert "not connected" in document["checks"]["consumers"]["reason"]
    assert document["consumers"]["shop:orders"]["is_healthy"] is False


async def test_consumer_without_its_topic(semel_storage: SqlAlchemyStorage) -> None:
    """A broker that answers is not enough: every consumer must have its subscription."""

    class Refusing(InMemoryMessageBus):
        refuses = True

        async def _subscribe(self, topic: str, group: str, prefetch: int) -> Any:
            if self.refuses:
                raise BusError("there is no such topic")
            return await super()._subscribe(topic, group, prefetch)

    bus = Refusing()
    async with running(semel_storage, bus) as (_, prober):
        await prober.until(fails("consumers"))
        bus.refuses = False
        await prober.until(is_ready)


async def test_stuck_handler(semel_storage: SqlAlchemyStorage) -> None:
    """A handler that does not come back makes its consumer unhealthy, not the process dead."""
    async with running(semel_storage) as (hub, prober):
        hub.health.stuck_after = 0.1
        async with hub.unit_of_work() as uow:
            await uow.outbox.add("orders", "stuck", event_type="OrderPlaced")
            await uow.commit()
        document = await prober.until(fails("consumers"))
        assert 200 == (await prober.ask("/livez"))[0]

    assert "a handler has been running" in document["consumers"]["shop:orders"]["reason"]


async def test_stalled_projector(
    semel_storage: SqlAlchemyStorage,
) -> None:
    """A loop that makes no turn any more is a reason to restart."""
    async with running(semel_storage, stalled_after=0.2) as (hub, prober):
        await prober.until(is_ready)
        projector: Any = hub.projector
        wait, gate = projector._wait, asyncio.Event()

        async def stuck(seconds: float) -> None:
            await gate.wait()
            await wait(seconds)

        projector._wait = stuck
        projector.wake()
        status, document = await prober.ask("/livez")
        async with asyncio.timeout(PATIENCE):
            while status == 200:
                await asyncio.sleep(0.02)
                status, document = await prober.ask("/livez")
        gate.set()

    assert (503, ["projector"]) == (status, document["stalled"])


async def test_dead_loops(semel_storage: SqlAlchemyStorage) -> None:
    """A projector or a consumer whose task has ended is neither alive nor ready."""
    async with running(semel_storage) as (hub, prober):
        await prober.until(is_ready)
        projector: Any = hub.projector
        consumer: Any = hub.consumers["orders"]
        for task in (projector._running, consumer._runner):
            task.cancel()
            await asyncio.wait({task})
        status, document = await prober.ask("/livez")
        await prober.until(lambda status, _: status == 503)
        consumer._runner = None

    assert (503, ["projector", "orders"]) == (status, document["stalled"])


async def test_a_process_that_runs_nothing(semel_storage: SqlAlchemyStorage) -> None:
    """A web process without projector and consumers is judged by what it has."""
    hub = Hub("shop", storage=semel_storage, bus=InMemoryMessageBus())

    @hub.on("orders", "OrderPlaced")
    async def handle(event: MessageEnvelope) -> None: ...

    async with hub.running(projector=False, consumers=False):
        status, document = await Prober(hub).ask()

    assert 200 == status
    assert "none runs in this process" == document["checks"]["projector"]["reason"]
    assert {} == document["consumers"]


async def test_probes_share_a_look(semel_storage: SqlAlchemyStorage) -> None:
    """Any number of probes costs one query per *cache_seconds*."""
    clock = FakeClock()
    hub = Hub("shop", storage=semel_storage, bus=InMemoryMessageBus())
    looks = 0
    check = semel_storage.check_version

    async def counted() -> None:
        nonlocal looks
        looks += 1
        await check()

    semel_storage.check_version = counted  # type: ignore[method-assign]
    prober = Prober(hub, cache_seconds=1, clock=clock)
    async with hub.running(projector=False, consumers=False):
        await asyncio.gather(*(prober.ask() for _ in range(50)))
        assert 1 == looks
        await prober.ask()
        assert 1 == looks
        clock.advance(1.5)
        await prober.ask()

    assert 2 == looks


async def test_a_prober_that_hangs_up_takes_nothing_away(postgres: Database) -> None:
    """A probe that is cancelled leaves the look to the others who wait for it."""
    async with Proxy.before(postgres.url) as proxy, SqlAlchemyStorage(postgres.url) as admin:
        await admin.initialize()
        storage = SqlAlchemyStorage(proxy.url)
        hub = Hub("shop", storage=storage, bus=InMemoryMessageBus())
        async with hub.running(projector=False, consumers=False):
            prober = Prober(hub)
            proxy.blackhole = True
            first, second = (asyncio.create_task(prober.ask()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait({first})
            proxy.blackhole = False
            status, _ = await second

    assert 200 == status


async def test_mounted_and_misused(semel_storage: SqlAlchemyStorage) -> None:
    """It works below any path; other paths and methods get a clear answer."""
    hub = Hub("shop", storage=semel_storage, bus=InMemoryMessageBus())
    app = Starlette(routes=[Mount("/internal/health", health_app(hub))])
    transport = httpx2.ASGITransport(app=app)
    async with (
        hub.running(projector=False, consumers=False),
        httpx2.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        found = await http.get("/internal/health/livez")
        head = await http.head("/internal/health/readyz")
        missing = await http.get("/internal/health/metrics")
        posted = await http.post("/internal/health/livez")

    assert [200, 200, 404, 405] == [r.status_code for r in (found, head, missing, posted)]
    assert b"" == head.content
    assert "GET, HEAD" == posted.headers["allow"]


def test_settings_are_checked(semel_storage: SqlAlchemyStorage) -> None:
    """A name that is no check, or a time that is none, is refused."""
    hub = Hub("shop", storage=semel_storage)
    for options in ({"required": ["databse"]}, {"timeout_seconds": 0}, {"cache_seconds": -1}):
        with pytest.raises(ConfigurationError):
            health_app(hub, **options)
