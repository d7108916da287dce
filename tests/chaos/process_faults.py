"""What happens to processes and to the links between them."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import make_url

from tests.chaos.crew import RIGHT
from tests.chaos.plan import LEASE

if TYPE_CHECKING:
    from tests.chaos.crew import Member
    from tests.chaos.nemesis import Fault, Nemesis


def _kill(role: str) -> Fault:
    async def fault(nemesis: Nemesis, chance: random.Random) -> str | None:
        member = nemesis.pick(chance, role)
        if member is None:
            return None
        async with member.lock:
            await nemesis.crew.end(member, signal.SIGKILL)
            await asyncio.sleep(chance.random())
            member.clock = RIGHT
            nemesis.crew.start(member)
        return member.name

    return fault


async def _stop(member: Member, seconds: float) -> None:
    async with member.lock:
        member.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.send(signal.SIGCONT)


def _pause(factor: float) -> Fault:
    async def fault(nemesis: Nemesis, chance: random.Random) -> str | None:
        member = nemesis.pick(chance)
        if member is None:
            return None
        await _stop(member, factor * LEASE)
        return member.name

    return fault


async def swizzle(nemesis: Nemesis, chance: random.Random) -> str | None:
    """Stop some processes one by one, and release them in another order."""
    members = [member for member in nemesis.crew.members.values() if not member.lock.locked()]
    some = chance.sample(members, min(3, len(members)))
    spans = [0.5 + chance.random() * 2 * LEASE for _ in some]
    await asyncio.gather(*(_stop(*each) for each in zip(some, spans, strict=True)))
    return ", ".join(member.name for member in some)


async def rolling_restart(nemesis: Nemesis, chance: random.Random) -> str | None:
    """SIGTERM, one after the other, as a deployment does it."""
    role = chance.choice(("api", "relay", "consumer"))
    for member in list(nemesis.crew.members.values()):
        if member.role == role and member.wanted and not member.lock.locked():
            async with member.lock:
                await nemesis.crew.end(member, signal.SIGTERM, seconds=8)
                member.clock = RIGHT
                nemesis.crew.start(member)
            await asyncio.sleep(0.5)
    return role


async def rebalance_storm(nemesis: Nemesis, chance: random.Random) -> str | None:
    """A third consumer joins and leaves, politely or not."""
    crew = nemesis.crew
    guest = crew.members.get("consumer-3") or await crew.hire("consumer-3")
    if guest.lock.locked():
        return None
    async with guest.lock:
        for _ in range(chance.randrange(2, 4)):
            crew.start(guest)
            await asyncio.sleep(0.5 + chance.random())
            number = chance.choice((signal.SIGTERM, signal.SIGKILL))
            await crew.end(guest, number, seconds=3)  # then it is killed while it stops
    return guest.name


async def clock_offset(nemesis: Nemesis, chance: random.Random) -> str | None:
    """A process comes back with a wrong clock; it keeps it until it is restarted again."""
    member = nemesis.pick(chance, "relay", "consumer", "api")
    if member is None:
        return None
    async with member.lock:
        await nemesis.crew.end(member, signal.SIGTERM, seconds=8)
        member.clock = (chance.choice((-300.0, 300.0)), chance.choice((1.0, 2.0)))
        nemesis.crew.start(member)
    return member.name


async def disk_full(nemesis: Nemesis, chance: random.Random) -> str | None:
    """No file of a process may grow beyond the size of its database's log."""
    member = nemesis.pick(chance)
    if member is None or member.pid is None:
        return None
    url = nemesis.ground.db2 if member.role == "consumer" else nemesis.ground.db1
    wal = Path(f"{make_url(url).database}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    return await _limited(member, resource.RLIMIT_FSIZE, size, 0.5 + 2 * chance.random())


async def no_descriptors(nemesis: Nemesis, chance: random.Random) -> str | None:
    """A process can open no file and no connection beyond those that it has."""
    member = nemesis.pick(chance)
    if member is None or member.pid is None:
        return None
    most = max(int(each.name) for each in Path(f"/proc/{member.pid}/fd").iterdir()) + 1
    return await _limited(member, resource.RLIMIT_NOFILE, most, 0.5 + 2 * chance.random())


async def _limited(member: Member, kind: int, limit: int, seconds: float) -> str:
    async with member.lock:
        pid = member.pid
        assert pid is not None
        before = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (limit, before[1]))
        await asyncio.sleep(seconds)
        if member.pid == pid:
            resource.prlimit(pid, kind, before)
    return member.name


async def broker_killed(nemesis: Nemesis, chance: random.Random) -> str | None:
    """SIGKILL, and back with its data after a moment."""
    from tests.chaos.servers import start

    broker = nemesis.ground.broker
    assert broker is not None
    async with nemesis.servers:
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(chance.random() * 2)
        await start(broker)
    return broker.name


PROCESS_FAULTS: dict[str, Fault] = {
    "relay killed": _kill("relay"),
    "consumer killed": _kill("consumer"),
    "api killed": _kill("api"),
    "stopped for half a lease": _pause(0.5),
    "stopped beyond the lease": _pause(1.5),
    "stopped for five leases": _pause(5),
    "swizzle": swizzle,
    "rolling restart": rolling_restart,
    "rebalance storm": rebalance_storm,
    "clock offset": clock_offset,
    "disk full": disk_full,
    "no descriptors": no_descriptors,
    "broker killed": broker_killed,
}


def _link(disturb: Any, calm: Any = None) -> Fault:
    """A fault of one link: *disturb* it, wait for as long as that says, and *calm* it."""

    async def fault(nemesis: Nemesis, chance: random.Random) -> str | None:
        member = nemesis.pick(chance)
        if member is None or not member.proxies:
            return None
        async with member.lock:
            name = chance.choice(sorted(member.proxies))
            proxy = member.proxies[name]
            try:
                await asyncio.sleep(disturb(proxy, chance) or 0)
            finally:
                if calm is not None:
                    calm(proxy)
        return f"{member.name} {name}"

    return fault


def _slow(proxy: Any, chance: random.Random) -> float:
    proxy.latency = chance.random() * 0.5
    return 1 + 2 * chance.random()


def _fast(proxy: Any) -> None:
    proxy.latency = 0.0


def _silence(proxy: Any, chance: random.Random) -> float:
    proxy.blackhole = True
    return 1 + 2 * LEASE * chance.random()


def _one_way(proxy: Any, chance: random.Random) -> float:
    proxy.hold(chance.choice(("up", "down")))
    return 1 + 2 * LEASE * chance.random()


def _lost(proxy: Any) -> None:
    """What was held never arrives."""
    proxy.cut()
    proxy.release()


LINK_FAULTS: dict[str, Fault] = {
    "link cut": _link(lambda proxy, _: proxy.cut()),
    "link cut after some bytes": _link(
        lambda proxy, chance: proxy.cut_after(chance.randrange(1, 20_000))
    ),
    "link silent": _link(_silence, lambda proxy: proxy.release()),
    "link silent one way": _link(_one_way, lambda proxy: proxy.release()),
    "link lost one way": _link(_one_way, _lost),
    "link slow": _link(_slow, _fast),
}
