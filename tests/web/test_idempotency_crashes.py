"""Servers killed under load, and clients that hang up: one effect per key, books that balance."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from tests.services import Database
from tests.web.bank import PAID_ONCE, Bank
from tests.web.server import Server, serving

KEYS = 200
CLIENTS = 12


@dataclass
class Client:
    """Pays with keys until each is answered, at whichever server."""

    servers: list[Server]
    answers: dict[str, bytes] = field(default_factory=dict)
    retries: int = 0

    async def pay(self, http: httpx2.AsyncClient, key: str, order: dict[str, Any]) -> bytes:
        """Repeat until there is an answer."""
        while True:
            base = random.choice(self.servers).base
            try:
                answer = await http.post(
                    f"{base}/payments", json=order, headers={"idempotency-key": key}
                )
            except httpx2.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 201:
                return answer.content
            if answer is not None:
                assert answer.status_code in (409, 500, 503), answer.text
            self.retries += 1
            await asyncio.sleep(0.05)

    async def work(self, http: httpx2.AsyncClient, keys: list[tuple[str, dict[str, Any]]]) -> None:
        while keys:
            key, order = keys.pop()
            self.answers[key] = await self.pay(http, key, order)


async def kill_at(client: Client, servers: list[Server], counts: list[int]) -> None:
    """Kill one server or the other when so many keys have been answered, in mid-work."""
    for number, count in enumerate(counts):
        while len(client.answers) < count:
            await asyncio.sleep(0.002)
        await asyncio.sleep(random.uniform(0, 0.05))
        victim = servers[number % len(servers)]
        victim.kill()
        victim.start()
        await victim.ready()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("vault", ["sqlite", "postgres", "mariadb"], indirect=True)
async def test_servers_killed_under_load(bank: Bank, vault: Database) -> None:
    """200 keys, two processes, SIGKILL at random moments, clients that repeat."""
    seed = random.randrange(10**9)
    random.seed(seed)
    print(f"seed {seed}")
    servers = [Server(vault.url) for _ in range(2)]
    client = Client(servers)
    orders = {
        f"key-{n}": {"account": f"a-{random.randrange(10)}", "cents": random.randrange(1, 1000)}
        for n in range(KEYS)
    }
    kills = sorted(random.sample(range(5, KEYS - 20), 3))
    try:
        for server in servers:
            server.start()
        for server in servers:
            await server.ready()
        async with httpx2.AsyncClient(headers={"x-user": "ann"}, timeout=60) as http:
            nemesis = asyncio.create_task(kill_at(client, servers, kills))
            work = list(orders.items())
            await asyncio.gather(*(client.work(http, work) for _ in range(CLIENTS)))
            await nemesis
            replays = [await client.pay(http, key, order) for key, order in orders.items()]
    finally:
        for server in servers:
            server.kill()
    total = sum(order["cents"] for order in orders.values())
    assert (KEYS, total, total, KEYS) == await bank.books()
    assert [client.answers[key] for key in orders] == replays
    assert KEYS == len(set(replays))
    assert client.retries > 0, "no request was hit: this run has shown nothing"


async def test_a_client_that_hangs_up(bank: Bank) -> None:
    """The handler goes on; what it did is decided by its commit, and the repetition gets it."""
    gates = bank.app.state.gates
    async with serving(bank.app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /slow HTTP/1.1\r\nhost: bank\r\nx-user: ann\r\nidempotency-key: k-1\r\n"
            b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        )
        await asyncio.wait_for(gates["reached"].wait(), 30)
        writer.transport.abort()
        gates["go"].set()
        headers = {"x-user": "ann", "idempotency-key": "k-1", "content-type": "application/json"}
        async with httpx2.AsyncClient(timeout=30) as http, asyncio.timeout(30):
            while True:
                again = await http.post(
                    f"http://127.0.0.1:{port}/slow", content=b"{}", headers=headers
                )
                if again.status_code != 409:
                    break
    assert (200, "true") == (again.status_code, again.headers["idempotent-replayed"])
    assert PAID_ONCE == await bank.books()
