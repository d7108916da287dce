"""End to end on every broker: exactly once and in order, in peace and under fire."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from semel import InboxRecord, InboxStatus, SqlAlchemyStorage
from tests.proxy import Proxy
from tests.scenarios.broker_worker import DEATH
from tests.scenarios.brokers import GROUPS, Workload, every, services
from tests.services import Database, service_url

#: A consumer that comes back under its name need not wait until Kafka has given up the dead one.
STATIC = {"kafka": {"consumer_options": {"group.instance.id": "one"}}}
OPTIONS: dict[str, dict[str, Any]] = {"redis": {"claim_after": 3}, "database": {"lease_seconds": 3}}


def _broker(name: str, *marks: pytest.MarkDecorator) -> Any:
    own = [] if name == "database" else [getattr(pytest.mark, name)]
    return pytest.param(name, marks=[*own, *marks], id=name)


EVERY = [_broker(name) for name in ("kafka", "rabbitmq", "pulsar", "nats", "redis", "database")]
#: A client of Kafka or Pulsar is told the broker's own address, so it goes round a proxy.
BEHIND_A_PROXY = [_broker(name) for name in ("rabbitmq", "nats", "redis")]
SERVERS = [
    *(_broker(name) for name in ("kafka", "rabbitmq", "nats", "redis")),
    _broker("pulsar", pytest.mark.timeout(420)),  # it takes its time to start
]
#: The others count deliveries by themselves.
UNCOUNTED = [_broker(name) for name in ("kafka", "pulsar")]

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
MakeWorkload = Callable[..., Awaitable[Workload]]


@pytest.fixture
async def workload(postgres: Database, tmp_path: Path) -> AsyncIterator[MakeWorkload]:
    """Make a workload for a broker, on PostgreSQL."""
    async with SqlAlchemyStorage(postgres.url) as storage:

        async def make(broker: str, url: str | None = None, **options: Any) -> Workload:
            if url is None:
                url = "database://" if broker == "database" else service_url(broker)
            made = Workload(storage, url, tmp_path, options={**OPTIONS.get(broker, {}), **options})
            await made.prepare()
            return made

        yield make


def tell(broker: str, workload: Workload, started: float) -> None:
    events = sum(workload.versions.values())
    seconds = time.monotonic() - started
    print(
        f"\n{broker}: {events} events, {len(workload.versions)} keys, 2 groups in "
        f"{seconds:.1f} s; {workload.killed} processes killed; 0 lost, 0 twice, in order"
    )


@pytest.mark.parametrize("broker", EVERY)
async def test_effects_once_and_in_order(broker: str, workload: MakeWorkload) -> None:
    """10,000 events over 100 keys reach both groups exactly once and in order per key."""
    work = await workload(broker)
    started = time.monotonic()
    async with work.staff():
        await work.write(10_000, per_transaction=50)
        await work.settle(seconds=180)
    await work.check()
    tell(broker, work, started)


@pytest.mark.parametrize("broker", SERVERS)
async def test_broker_killed_and_restarted(broker: str, workload: MakeWorkload) -> None:
    """The broker dies with SIGKILL while everything runs, twice, and comes back."""
    work = await workload(broker)
    started = time.monotonic()

    async def kill_broker() -> None:
        await services("kill", broker)
        await asyncio.sleep(1)
        await services("start", broker)

    try:
        async with work.staff():
            writing = asyncio.create_task(work.write(2_000, pause=0.05))
            await every(3, 2, kill_broker)
            await writing
            await work.settle(seconds=150)
    finally:
        await services("start", broker)
    await work.check()
    tell(f"{broker} killed twice", work, started)


@pytest.mark.parametrize("broker", BEHIND_A_PROXY)
async def test_connections_cut(broker: str, workload: MakeWorkload) -> None:
    """All connections to the broker are cut, again and again, in the middle of what they send."""
    started = time.monotonic()
    async with Proxy.before(service_url(broker)) as proxy:
        work = await workload(broker, proxy.url)
        chance = random.Random(2)

        async def cut() -> None:
            if chance.random() < 0.5:
                proxy.cut()
            else:
                proxy.cut_after(chance.randrange(1, 20_000))

        async with work.staff():
            writing = asyncio.create_task(work.write(2_000, pause=0.05))
            await every(0.5, 12, cut)
            await writing
            await work.settle(seconds=150)
        await work.check()
    tell(f"{broker} cut", work, started)


@pytest.mark.parametrize("broker", EVERY)
async def test_processes_killed_and_groups_rebalanced(broker: str, workload: MakeWorkload) -> None:
    """Every two seconds a process is killed or stopped and replaced; groups rebalance."""
    work = await workload(broker)
    started = time.monotonic()
    chance = random.Random(3)

    async def disturb() -> None:
        name = chance.choice(sorted(work.workers))
        number = signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM
        await work.replace(name, number)

    async with work.staff():
        writing = asyncio.create_task(work.write(2_000, pause=0.05))
        await every(2, 7, disturb)
        await writing
        await work.settle(seconds=150)
    await work.check()
    tell(f"{broker} with processes killed", work, started)


@pytest.mark.parametrize("broker", UNCOUNTED)
async def test_a_message_that_kills_its_consumer(broker: str, workload: MakeWorkload) -> None:
    """It is DEAD after its attempts; what ran beside it is done, once, and not blamed."""
    work = await workload(broker, **STATIC.get(broker, {}))
    work.attempts, work.poison = 2, "poison"
    await work.write(60)
    async with work.storage.unit_of_work() as uow:
        payload = {"key": work.poison, "version": 1}
        await uow.outbox.add(work.topic, payload, event_type="Appended", key=work.poison)
        await uow.commit()
    await work.write(60)
    deaths = 0
    post = ("consumer", GROUPS[0])
    async with work.staff(("projector", "relay"), post), asyncio.timeout(120):
        while await work.count_effects() < 120 or not await dead(work):
            for name in [name for name, w in work.workers.items() if w.returncode is not None]:
                assert DEATH == work.workers.pop(name).returncode
                deaths += 1
                await work.hire(*post)
            await asyncio.sleep(0.05)
    assert ["Appended"] == await dead(work)
    assert deaths in (work.attempts, work.attempts + 1), "the first may be unknown to the broker"


async def dead(work: Workload) -> Sequence[str]:
    rows = select(InboxRecord.event_type).where(InboxRecord.status == InboxStatus.DEAD.value)
    async with work.storage.engine.connect() as connection:
        return (await connection.scalars(rows)).all()
