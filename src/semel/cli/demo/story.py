"""What happens in the demo, and when."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Protocol

from sqlalchemy import func, select

from semel.cli.demo.shop import FOLDER, TOPIC, Order, Reservation, Shop, make_storage
from semel.states import OutboxStatus

_CUSTOMERS = 20
_UNDONE = 0.1
_PACE_SECONDS = 0.02
_DRAIN_SECONDS = 90.0


class Audience(Protocol):
    """Whoever watches."""

    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, figures: dict[str, int]) -> None:
        """The figures changed."""


class Story:
    """Places orders, breaks things, and waits until everything is handled."""

    def __init__(self, folder: Path, *, orders: int, seed: int) -> None:
        self.folder = folder
        self.orders = orders
        self.storage = make_storage(folder)
        self.placed: dict[str, int] = {}
        self.undone = 0
        self._random = random.Random(seed)  # noqa: S311  a demo, not a secret
        self._workers: dict[str, asyncio.subprocess.Process] = {}
        self._numbers: dict[str, int] = {}

    async def play(self, audience: Audience) -> None:
        """From the first order to the last effect."""
        await self.storage.initialize()
        async with self.storage.engine.begin() as connection:
            await connection.run_sync(Shop.metadata.create_all)
        for role in ("projector", "projector", "consumers", "consumers"):
            await self._hire(role)
        audience.say("two projectors and two consumers run, each a process of its own")
        watching = asyncio.create_task(self._watch(audience))
        try:
            await self._place_orders(audience)
            audience.say("all orders are placed; the rest is handled")
            await self._until_handled(audience)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._dismiss()
            audience.show(await self.figures())

    async def close(self) -> None:
        """Close the database."""
        await self.storage.close()

    async def _place_orders(self, audience: Audience) -> None:
        for number in range(1, self.orders + 1):
            await self._place_order(number)
            await self._make_trouble(number, audience)
            await asyncio.sleep(_PACE_SECONDS * self._random.random())

    async def _place_order(self, number: int) -> None:
        customer = f"customer-{self._random.randrange(_CUSTOMERS)}"
        version = self.placed.get(customer, 0) + 1
        order_id = f"order-{number}"
        async with self.storage.unit_of_work() as uow:
            uow.session.add(Order(id=order_id, customer=customer, version=version))
            await uow.outbox.add(
                TOPIC,
                {
                    "order_id": order_id,
                    "customer": customer,
                    "version": version,
                    "number": number,
                },
                event_type="OrderPlaced",
                key=customer,
            )
            if self._random.random() < _UNDONE:
                self.undone += 1
                return  # leaving without a commit: neither order nor event may exist
            await uow.commit()
        self.placed[customer] = version

    async def _make_trouble(self, number: int, audience: Audience) -> None:
        part = number * 100 // self.orders
        if number > 1 and part == (number - 1) * 100 // self.orders:
            return
        if part == 20:
            (self.folder / "outage").touch()
            audience.say("the broker is away")
        elif part == 40:
            (self.folder / "outage").unlink(missing_ok=True)
            audience.say("the broker is back")
        elif part == 55:
            (self.folder / "kill-projector").touch()
            audience.say("a projector will be killed in the middle of a batch")
        elif part == 75:
            (self.folder / "kill-consumer").touch()
            audience.say("a consumer will be killed between its work and its commit")

    async def _until_handled(self, audience: Audience) -> None:
        expected = sum(self.placed.values())
        async with asyncio.timeout(_DRAIN_SECONDS):
            while True:
                figures = await self.figures()
                audience.show(figures)
                pending = any((self.folder / f"kill-{who}").exists() for who in ("projector",))
                if figures["effects"] >= expected and figures["unsent"] == 0 and not pending:
                    return
                await asyncio.sleep(0.1)

    async def figures(self) -> dict[str, int]:
        """Count what there is now."""
        stats = await self.storage.outbox.stats()
        async with self.storage.engine.connect() as connection:
            effects = await connection.scalar(select(func.count()).select_from(Reservation))
        log = self.folder / "published.log"
        ids = log.read_text().split() if log.exists() else []
        counts = {status.value: stats.counts[status] for status in OutboxStatus}
        return counts | {
            "unsent": sum(counts[s] for s in ("NEW", "PUBLISHING", "FAILED")),
            "published": len(ids),
            "duplicates": len(ids) - len(set(ids)),
            "effects": effects or 0,
            "orders": sum(self.placed.values()),
            "undone": self.undone,
        }

    async def _watch(self, audience: Audience) -> None:
        """Replace workers that died, and tell."""
        while True:
            for name, process in list(self._workers.items()):
                if process.returncode is not None:
                    del self._workers[name]
                    role = name.partition("-")[0]
                    audience.say(f"{name} was killed without any clean-up; another one starts")
                    await self._hire(role)
            audience.show(await self.figures())
            await asyncio.sleep(0.25)

    async def _hire(self, role: str) -> None:
        number = self._numbers[role] = self._numbers.get(role, 0) + 1
        name = f"{role}-{number}"
        with (self.folder / f"{name}.log").open("wb") as log:
            self._workers[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "semel",
                "run",
                "semel.cli.demo.worker:hub",
                "--only",
                role,
                env={**os.environ, FOLDER: str(self.folder)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _dismiss(self) -> None:
        for process in self._workers.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        for process in self._workers.values():
            try:
                async with asyncio.timeout(10):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
