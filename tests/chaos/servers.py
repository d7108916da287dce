"""The servers of one run: its own, so that they may be killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from scripts.servers.base import Server
from scripts.servers.kafka import Kafka
from scripts.servers.mariadb import MariaDB
from scripts.servers.nats import Nats
from scripts.servers.postgres import Postgres
from scripts.servers.rabbitmq import RabbitMQ
from scripts.servers.redis import Redis
from sqlalchemy import make_url

from semel import bus_from_url
from tests.chaos.plan import GROUPS, LEASE, TOPICS, Plan
from tests.services import fresh_database, variable

KINDS: dict[str, type[Server]] = {
    kind.name: kind for kind in (Postgres, MariaDB, Kafka, RabbitMQ, Nats, Redis)
}
#: Quick to notice that a member of a group or a connection is dead.
OPTIONS: dict[str, dict[str, Any]] = {
    "database": {"lease_seconds": LEASE, "poll_seconds": 0.2, "partitions": 4},
    "kafka": {
        "timeout_seconds": 5,
        "consumer_options": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1500},
    },
    "rabbitmq": {"heartbeat_seconds": 4, "confirm_seconds": 5, "connect_seconds": 3},
    "nats": {"ack_seconds": 4, "timeout_seconds": 3},
    "redis": {"claim_after": 3, "timeout_seconds": 3, "maxlen": None},
}
#: Processes die here, machines do not: what is in memory survives all that we do.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else "/var/tmp"
_PORTS_ABOVE = 3000


@dataclass
class Ground:
    """Where a run takes place."""

    db1: str
    db2: str
    bus: str
    bus_options: dict[str, Any]
    database_server: Server | None = None
    broker: Server | None = None
    servers: list[Server] = field(default_factory=list)


def _own(name: str, folder: Path) -> Server:
    kind = KINDS[name]

    class Own(kind):  # type: ignore[valid-type,misc]
        """One that the environment does not name, away from the ports of the others."""

        ports: ClassVar = {role: port + _PORTS_ABOVE for role, port in kind.ports.items()}

        @property
        def url(self) -> str:
            return str(self.address(self.port()))

    server: Server = Own(folder)
    if not server.installed():
        raise SystemExit(f"chaos: no {name} on this machine; see `scripts/services up {name}`")
    return server


async def start(server: Server) -> None:
    """Start it, also after `kill`: with its ports and its data."""

    def begin() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it goes on without its object
            server.start()

    await asyncio.to_thread(begin)


@contextmanager
def _open_folder() -> Iterator[Path]:
    """A folder that other users can read, as servers are."""
    name = tempfile.mkdtemp(prefix="semel-chaos-", dir=MEMORY)
    try:
        Path(name).chmod(0o755)
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


@asynccontextmanager
async def ground(plan: Plan) -> AsyncIterator[Ground]:
    """Start what the plan needs, with two empty databases; all of it is gone afterwards."""
    with _open_folder() as folder:
        names = [plan.database] if plan.own and plan.database != "sqlite" else []
        names += [] if plan.bus == "database" else [plan.bus]
        servers = {name: _own(name, folder) for name in names}
        try:
            await asyncio.gather(*(start(server) for server in servers.values()))
            if plan.database in servers:
                os.environ[variable(plan.database)] = servers[plan.database].url
            with _databases(plan) as (db1, db2):
                broker = servers.get(plan.bus)
                yield Ground(
                    db1=db1,
                    db2=db2,
                    bus=f"database+{db1}" if broker is None else broker.url,
                    bus_options=OPTIONS[plan.bus],
                    database_server=servers.get(plan.database),
                    broker=broker,
                    servers=list(servers.values()),
                )
        finally:
            for name, server in servers.items():
                server.kill()
                if server.log.exists():
                    shutil.copy(server.log, plan.folder / f"{name}.log")


@contextmanager
def _databases(plan: Plan) -> Iterator[tuple[str, str]]:
    with (
        tempfile.TemporaryDirectory(prefix="semel-chaos-", dir=MEMORY) as first,
        tempfile.TemporaryDirectory(prefix="semel-chaos-", dir=MEMORY) as second,
        fresh_database(plan.database, Path(first)) as one,
        fresh_database(plan.database, Path(second)) as two,
    ):
        yield one.url, two.url


async def declare(ground: Ground) -> None:
    """Make the topics and the groups, so that nothing is published before anybody listens."""
    topics = [*TOPICS, *(f"{topic}.dead" for topic in TOPICS)]
    bus: Any = bus_from_url(ground.bus, **ground.bus_options)
    async with bus:
        for topic in topics:
            if hasattr(bus, "declare"):
                await bus.declare(topic, partitions=4)
            for group in GROUPS if not topic.endswith(".dead") else ("undertaker",):
                await (await bus.subscribe(topic, group=group)).close()


def moved(url: str, port: int) -> str:
    """Return a database's URL by way of a proxy."""
    return make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
