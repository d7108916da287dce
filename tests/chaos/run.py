"""One run: servers, processes, clients, faults, peace, and the books."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from signal import SIGTERM

from tests.chaos import tables
from tests.chaos.clients import Clients
from tests.chaos.crew import Crew
from tests.chaos.database_faults import requeue
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import GROUPS, LEASE, TROUBLE, History, Plan
from tests.chaos.servers import Ground, declare, ground
from tests.chaos.state import collect, write
from tests.chaos.storages import Storages, unsettled

_CLIENTS = {"sqlite": (4, 0.25), "postgres": (6, 0.12), "mariadb": (6, 0.12)}
_PATIENCE = 180.0  # for what takes seconds where nobody else works


async def run(plan: Plan) -> None:
    """Fill the plan's folder; `tests.chaos.checker` says whether all is well."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    plan.folder.mkdir(parents=True)
    history = History(plan.folder, "harness", "harness")
    try:
        async with ground(plan) as place:
            storages = Storages(place.db1, place.db2)
            try:
                for storage in storages.both:
                    await tables.create(storage, plan.database)
                await declare(place)
                await _story(plan, place, storages, history)
            finally:
                await storages.close()
    finally:
        history.close()


async def _story(plan: Plan, place: Ground, storages: Storages, history: History) -> None:
    (plan.folder / TROUBLE).touch()
    async with Crew(plan, place, history) as crew:

        def addresses() -> list[str]:
            fronts = [m.proxies["http"] for m in crew.members.values() if m.role == "api"]
            return [f"http://127.0.0.1:{front.port}" for front in fronts]

        clients = Clients(addresses, history, plan.seed)
        nemesis = Nemesis(plan, place, crew, storages, history)
        number, pause = _CLIENTS[plan.database]
        working = asyncio.create_task(clients.work(number, pause))
        try:
            await _warm_up(storages, working)
            history.write("info", "chaos")
            await nemesis.rage(plan.minutes * 60)
            history.write("info", "peace")
            await crew.heal()
            clients.stopping.set()
            quiet, bound = await _settle(plan, crew, storages, nemesis, working)
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        ends = [crew.end(member, SIGTERM) for member in crew.members.values() if member.wanted]
        polite = await asyncio.gather(*ends)
        history.write("info", "ended", value={"polite": polite, "unasked": crew.unasked})
        state = await collect(
            plan,
            storages,
            clients,
            quiescent_after=quiet,
            bound=bound,
            operated=nemesis.operated,
        )
        write(plan.folder, state, nemesis.faults)


async def _warm_up(storages: Storages, working: asyncio.Task[None]) -> None:
    """Wait until something has gone all the way."""
    async with asyncio.timeout(_PATIENCE):
        while not await storages.rows(storages.two, tables.Effect.id, by=tables.Effect.seq):
            if working.done():
                await working
            await asyncio.sleep(0.1)


async def _settle(
    plan: Plan, crew: Crew, storages: Storages, nemesis: Nemesis, working: asyncio.Task[None]
) -> tuple[float | None, float]:
    """End the trouble and wait until nothing moves; return how long it took, and the bound."""
    began = time.monotonic()
    async with asyncio.timeout(_PATIENCE):
        await working
    (plan.folder / TROUBLE).unlink()
    backlog = await unsettled(storages, GROUPS)
    # Leases, time-outs and back-offs, one after the other; then a rate that any machine reaches.
    bound = 60 + 10 * LEASE + backlog / 2
    await requeue(nemesis, None)  # type: ignore[arg-type]
    deadline = began + bound
    while await unsettled(storages, GROUPS):
        if time.monotonic() > deadline:
            return None, bound
        await asyncio.sleep(0.3)
    after = time.monotonic() - began
    await asyncio.sleep(2 * LEASE)
    crew.sample()
    await asyncio.sleep(0.5)
    return after, bound
