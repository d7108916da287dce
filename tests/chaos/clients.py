"""Clients of the API: they transfer and append, and try again until they know the outcome."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx2

from tests.chaos.plan import ACCOUNTS, KEYS, ODD, TENANTS, History
from tests.chaos.tables import digest

#: Of what kind an append is, how its transaction ends, and how often.
APPENDS = (
    *(("Appended", "commit", 60), ("Appended", "rollback", 10), ("Appended", "savepoint", 5)),
    *(("Appended", "oversize", 3), ("Appended", "nul", 2), ("Refused", "commit", 4)),
    *(("Poison", "commit", 2), ("Unheard", "commit", 2)),
)
_TIMEOUT = 3.0
_KNOWN = {201, 413, 418, 422}


class Clients:
    """Several clients that work until they are told to stop, and then finish what they began."""

    def __init__(self, addresses: Callable[[], list[str]], history: History, seed: int) -> None:
        self._addresses = addresses
        self._history = history
        self._chance = random.Random(seed)
        self._numbers = iter(range(10**9))
        self.stopping = asyncio.Event()
        self.count = 0
        #: What was asked with each key, and every answer that counts.
        self.bodies: dict[tuple[str, str], list[str]] = {}
        self.answers: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)

    async def work(self, clients: int, pause: float) -> None:
        """Return after `stopping` was set and all have finished."""
        await asyncio.gather(*(self._client(n, pause) for n in range(clients)))

    async def _client(self, number: int, pause: float) -> None:
        chance = random.Random(self._chance.randrange(2**31))
        async with httpx2.AsyncClient(timeout=_TIMEOUT, trust_env=False) as http:
            while not self.stopping.is_set():
                if chance.random() < 0.4:
                    await self._transfer(http, chance)
                else:
                    await self._append(http, chance)
                self.count += 1
                await asyncio.sleep(chance.random() * 2 * pause)

    async def _append(self, http: httpx2.AsyncClient, chance: random.Random) -> None:
        """Ask once: without a key, a second time would be another event."""
        kinds = [(kind, end) for kind, end, _ in APPENDS]
        [(kind, end)] = chance.choices(kinds, [weight for *_, weight in APPENDS])
        tenant = chance.choice(TENANTS)
        if kind == "Refused":
            keys = [f"{tenant}-{ODD[kind]}-{chance.randrange(3)}"]
        elif kind in ODD:
            keys = [f"{tenant}-{ODD[kind]}-{next(self._numbers)}"]
        else:
            some = chance.sample(range(KEYS), chance.choice((1, 1, 1, 3)))
            keys = [f"{tenant}-k{n}" for n in some]
        body = {"keys": keys, "kind": kind, "end": end}
        self._history.write("invoke", "append", keys[0], {"tenant": tenant, **body})
        status, _ = await self._post(http, chance, "/entries", body, {"x-tenant": tenant})
        kind = "ok" if status in _KNOWN else "info"
        self._history.write(kind, "append", keys[0], {"tenant": tenant, "status": status, **body})

    async def _transfer(self, http: httpx2.AsyncClient, chance: random.Random) -> None:
        """Ask with a key until there is an answer; now and then at once, or with another body."""
        tenant = chance.choice(TENANTS)
        source, target = chance.sample(range(ACCOUNTS), 2)
        body: dict[str, Any] = {
            "source": f"{tenant}-a{source}",
            "target": f"{tenant}-a{target}",
            "cents": chance.randrange(1, 500),
        }
        key = str(UUID(int=chance.getrandbits(128), version=4))
        self.bodies[tenant, key] = [digest(body)]
        manner = chance.choice(("once", "once", "again", "parallel", "changed", "both"))
        asked = [body]
        if manner in ("parallel", "both"):
            asked += [body, body]
        if manner == "both":
            asked.append({**body, "cents": body["cents"] + 1})
        await asyncio.gather(*(self._insist(http, chance, tenant, key, each) for each in asked))
        if manner == "again":
            await self._insist(http, chance, tenant, key, body)
        elif manner == "changed":
            await self._insist(http, chance, tenant, key, {**body, "cents": body["cents"] + 1})

    async def _insist(
        self,
        http: httpx2.AsyncClient,
        chance: random.Random,
        tenant: str,
        key: str,
        body: dict[str, Any],
    ) -> None:
        headers = {"x-tenant": tenant, "x-user": "ann", "idempotency-key": key}
        about = {"tenant": tenant, "body": digest(body)}
        self._history.write("invoke", "transfer", key, {**about, **body})
        for _ in range(200):
            status, content = await self._post(http, chance, "/transfers", body, headers)
            sha = hashlib.sha256(content).hexdigest()
            if status in _KNOWN:
                self.answers[tenant, key].append((status, sha, digest(body)))
                kind = "ok" if status == 201 else "fail"
                self._history.write(kind, "transfer", key, {**about, "status": status, "sha": sha})
                return
            self._history.write("info", "transfer", key, {**about, "status": status})
            await asyncio.sleep(0.05 + chance.random() * 0.5)
        self._history.write("info", "transfer", key, {**about, "status": None})

    async def _post(
        self,
        http: httpx2.AsyncClient,
        chance: random.Random,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
    ) -> tuple[int | None, bytes]:
        """Return status and body; None where nobody can tell what happened."""
        url = chance.choice(self._addresses()) + path
        impatience = chance.choice((_TIMEOUT, _TIMEOUT, _TIMEOUT, 0.05))
        try:
            answer = await http.post(url, json=body, headers=headers, timeout=impatience)
        except (httpx2.HTTPError, OSError):
            return None, b""
        return answer.status_code, answer.content
