"""idemkit: its ASGI middleware on PostgreSQL around a service that writes one row per request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import count
from pathlib import Path

from driving import DSN, main, rate
from fastapi import FastAPI
from idemkit import IdempotencyMiddleware, PostgresBackend
from requesting import request
from sessions import business, prepare
from sqlalchemy import insert

_numbers = count()


def _key() -> str:
    return f"8e03978e-40d5-43e8-bc93-{next(_numbers):012d}"


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
    await request(app, "/")
    await request(whole, "/", _key())
    return {
        ", without": await rate(lambda _: request(app, "/"), requests, workers),
        ", a new key": await rate(lambda _: request(whole, "/", _key()), requests, workers),
    }


main(requests=requests)
