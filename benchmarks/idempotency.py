"""What an `Idempotency-Key` costs: the same service with it and without it, in one run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from fastapi import Depends, FastAPI
from sqlalchemy import event, insert

from benchmarks.relay import CONNECTIONS, Result, business, database
from semel import Hub, IdempotencyMiddleware, SqlAlchemyStorage
from semel.fastapi import idempotency_key, unit_of_work

REQUESTS = 400
RUNS = 3
_BODY = json.dumps({"text": "x" * 200}).encode()
_numbers = count()


def service(storage: SqlAlchemyStorage, *, middleware: bool) -> FastAPI:
    """Return a service that writes one row per request."""
    app = FastAPI()
    uow_of = Depends(unit_of_work(Hub("bench", storage=storage)), scope="function")
    if middleware:
        app.add_middleware(IdempotencyMiddleware, storage=storage)

    async def place(order: dict[str, str], uow: Any = uow_of) -> Any:
        await uow.session.execute(insert(business).values(text=order["text"]))
        await uow.commit()
        return {"placed": True}

    app.post("/plain")(place)
    if middleware:
        claim = Depends(idempotency_key(principal=lambda: "bench"))
        app.post("/keyed", dependencies=[claim])(place)
    return app


async def request(app: FastAPI, path: str, key: str | None) -> None:
    """Call the application as a server would."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("bench", 80),
    }
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": _BODY, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    assert statuses == [200]


async def _rate(one: Callable[[], Any]) -> float:
    async def work(numbers: Iterator[int]) -> None:
        for _ in numbers:
            await one()

    numbers = iter(range(REQUESTS))
    begun = time.perf_counter()
    await asyncio.gather(*(work(numbers) for _ in range(CONNECTIONS)))
    return REQUESTS / (time.perf_counter() - begun)


async def _statements(storage: SqlAlchemyStorage, one: Callable[[], Any]) -> int:
    sent = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        sent.append(sql)

    event.listen(storage.engine.sync_engine, "before_cursor_execute", note)
    await one()
    event.remove(storage.engine.sync_engine, "before_cursor_execute", note)
    return len(sent)


async def requests_with_keys(url: str) -> Result:
    """Requests per second, by eight clients at once, and statements per request."""
    async with database(url) as storage:
        bare, whole = service(storage, middleware=False), service(storage, middleware=True)
        key = "8e03978e-40d5-43e8-bc93-6894a57f9324"
        sides: dict[str, Callable[[], Any]] = {
            "without the middleware": lambda: request(bare, "/plain", None),
            "without a key": lambda: request(whole, "/plain", None),
            "with a new key": lambda: request(whole, "/keyed", f"{key}-{next(_numbers)}"),
            "repeated": lambda: request(whole, "/keyed", key),
        }
        for one in sides.values():
            await one()
        counts = {name: await _statements(storage, one) for name, one in sides.items()}
        added = counts["with a new key"] - counts["without the middleware"]
        result = Result(
            f"Requests with an Idempotency-Key, {added} statements more",
            target=0.5,
            measured="with a new key",
            limit="without the middleware",
        )
        for _ in range(RUNS):
            for name, one in sides.items():
                result.sides.setdefault(name, []).append(await _rate(one))
        return result
