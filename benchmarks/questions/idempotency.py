"""What does an `Idempotency-Key` cost a request?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from fastapi import Depends, FastAPI
from sqlalchemy import event, insert

from benchmarks import peers
from benchmarks.databases import business, storage
from benchmarks.peers.requesting import request
from benchmarks.questions.inbox import WORKERS, spread
from benchmarks.runner import Answer, Bench, pick
from semel import Hub, IdempotencyMiddleware, SqlAlchemyStorage
from semel.fastapi import idempotency_key, unit_of_work

UNIT = "requests/s"
BARE = "limit: without the middleware"
NEW = "semel, a new key"
_KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
_numbers = count()


def service(made: SqlAlchemyStorage, *, middleware: bool) -> FastAPI:
    """A service that writes one row per request."""
    app = FastAPI()
    uow_of = Depends(unit_of_work(Hub("bench", storage=made)), scope="function")
    if middleware:
        app.add_middleware(IdempotencyMiddleware, storage=made)

    async def place(order: dict[str, str], uow: Any = uow_of) -> Any:
        await uow.session.execute(insert(business).values(text=order["text"]))
        await uow.commit()
        return {"placed": True}

    app.post("/plain")(place)
    if middleware:
        claim = Depends(idempotency_key(principal=_caller))
        app.post("/keyed", dependencies=[claim])(place)
    return app


async def _caller() -> str:
    """Who calls; a function that is not async would be run in a thread, at each request."""
    return "bench"


async def statements(made: SqlAlchemyStorage, one: Callable[[], Any]) -> int:
    """How many statements a call sends."""
    sent = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        sent.append(sql)

    event.listen(made.engine.sync_engine, "before_cursor_execute", note)
    await one()
    event.remove(made.engine.sync_engine, "before_cursor_execute", note)
    return len(sent)


async def ask(bench: Bench) -> None:
    requests = bench.size(4000 if bench.full else 500, least=80)
    async with storage(bench) as made:
        bare, whole = service(made, middleware=False), service(made, middleware=True)
        calls: dict[str, Callable[[], Any]] = {
            BARE: lambda: request(bare, "/plain"),
            "semel, without a key": lambda: request(whole, "/plain"),
            NEW: lambda: request(whole, "/keyed", f"{_KEY}-{next(_numbers)}"),
            "semel, repeated": lambda: request(whole, "/keyed", _KEY),
        }
        for one in calls.values():
            await one()
        counts = {name: await statements(made, one) for name, one in calls.items()}

        async def rate(one: Callable[[], Any]) -> float:
            return requests / await spread(lambda _: one(), range(requests))

        measures = {name: lambda one=one: rate(one) for name, one in calls.items()}
        rivals = peers.sides(bench, "requests", requests=requests, workers=WORKERS)
        sides = await bench.compare({**measures, **rivals}, unit=UNIT)
    title = f"Requests with an Idempotency-Key, {WORKERS} at a time"
    told = ", ".join(f"{name}: {number}" for name, number in counts.items())
    bench.answer(
        "idempotency",
        title,
        pick(sides, *calls),
        NEW,
        BARE,
        0.5,
        note=f"Statements per request: {told}.",
    )
    if bench.peers:
        _beside(bench, title, sides)


def _beside(bench: Bench, title: str, sides: dict[str, Any]) -> None:
    """Each relative to the same service without keys, on its own stack."""
    names = ("idemkit, a new key", "idemkit, without")
    present = all(name in sides for name in names)
    ours = sides[NEW].median / sides[BARE].median
    theirs = sides[names[0]].median / sides[names[1]].median if present else None
    bench.keep(
        Answer(
            question="idempotency-peers",
            title=f"{title}: beside idemkit, which keeps its answer in a transaction of its own",
            sides=pick(sides, BARE, NEW, *names),
            measured="semel's share of a request without keys",
            against="that of idemkit",
            ratio=None if theirs is None else ours / theirs,
            target=1.0,
        )
    )
