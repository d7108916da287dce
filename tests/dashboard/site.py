"""A dashboard on a port of its own, and who may come in."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

from semel import Hub
from semel.dashboard import (
    ADMIN,
    OPERATOR,
    READER,
    VIEWER,
    Account,
    AnyOf,
    BasicAuth,
    Dashboard,
    TokenAuth,
    create_dashboard,
    hash_password,
    hash_token,
)

PASSWORD = "correct horse battery"
TOKEN = "a-token-that-is-long-enough-to-be-random"
_HASH = hash_password(PASSWORD)
_ACME = frozenset({"acme"})

#: What each may do, and for which tenants.
PEOPLE: dict[str, tuple[frozenset[Any], frozenset[str] | None]] = {
    "viewer": (VIEWER, None),
    "reader": (READER, None),
    "operator": (OPERATOR, None),
    "admin": (ADMIN, None),
    "acme-viewer": (VIEWER, _ACME),
    "acme-admin": (ADMIN, _ACME),
    "nobody": (frozenset(), None),
}


def auth() -> AnyOf:
    """Everybody by the same password, and a program by its token."""
    people = [
        Account(name=name, secret_hash=_HASH, actions=actions, tenants=tenants)
        for name, (actions, tenants) in PEOPLE.items()
    ]
    robot = Account(name="robot", secret_hash=hash_token(TOKEN), actions=ADMIN)
    return AnyOf(TokenAuth([robot]), BasicAuth(people))


def basic(name: str, password: str = PASSWORD) -> str:
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


@dataclass(slots=True)
class Site:
    """A dashboard that answers."""

    hub: Hub
    dashboard: Dashboard

    def client(self, name: str | None, **headers: str) -> httpx2.AsyncClient:
        """A client that behaves like a page of the dashboard itself."""
        given = {"sec-fetch-site": "same-origin"}
        if name is not None:
            given["authorization"] = basic(name)
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.dashboard),
            base_url="http://dashboard.test",
            headers=given | headers,
            timeout=30,
        )


def make_site(hub: Hub, **options: Any) -> Site:
    return Site(hub, create_dashboard(hub, **({"auth": auth()} | options)))


@asynccontextmanager
async def serving(app: Dashboard) -> AsyncIterator[str]:
    """Serve over TCP, as a browser needs it; yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_level="error", lifespan="off", timeout_graceful_shutdown=1, access_log=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        app.live.stop()
        server.should_exit = True
        await task
