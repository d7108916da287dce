"""idemkit: its ASGI middleware on PostgreSQL around a service that writes one row per request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

from driving import DSN, TEXT, main, rate
from fastapi import FastAPI
from idemkit import IdempotencyMiddleware, PostgresBackend
from sessions import business, prepare
from sqlalchemy import insert

BODY = json.dumps({"text": TEXT[:200]}).encode()
_numbers = count()


async def _request(app: Any, *, keyed: bool) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    if keyed:
        headers.append((b"idempotency-key", b"8e03978e-40d5-43e8-bc93-%012d" % next(_numbers)))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("bench", 80),
    }
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    assert statuses == [200], statuses


async def requests(requests: int, workers: int) -> dict[str, float]:
    tool = Path(sys.executable).with_name("idemkit")
    await asyncio.to_thread(subprocess.run, [tool, "init-pg", DSN], check=True, capture_output=True)
    _, sessions = await prepare()
    app = FastAPI()

    @app.post("/")
    async def place(order: dict[str, str]) -> dict[str, bool]:
        async with sessions() as session:
            await session.execute(insert(business), {"text": order["text"]})
            await session.commit()
        return {"placed": True}

    whole = IdempotencyMiddleware(app, backend=PostgresBackend.from_url(DSN))
    await _request(app, keyed=False)
    await _request(whole, keyed=True)
    return {
        ", without": await rate(lambda _: _request(app, keyed=False), requests, workers),
        ", a new key": await rate(lambda _: _request(whole, keyed=True), requests, workers),
    }


main(requests=requests)
