"""A request's correlation id and trace reach the events it causes, and the services behind."""

import asyncio
import hashlib
from typing import Annotated, Any
from uuid import UUID

import httpx2
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from semel import (
    Hub,
    Idempotency,
    IdempotencyMiddleware,
    IdempotencyPolicy,
    MessageEnvelope,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
    UnitOfWork,
)
from semel.asgi.context import RequestContextMiddleware, request_metadata
from semel.context import carried, carry
from semel.fastapi import idempotency_key, unit_of_work

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def client(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test")


def scope(*headers: tuple[str, str]) -> dict[str, Any]:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "headers": encoded}


async def test_from_the_request_to_the_second_service(semel_storage: SqlAlchemyStorage) -> None:
    """Header, event, handler of another service, and the event that this one emits."""
    shop, billing = (Hub(name, storage=semel_storage) for name in ("shop", "billing"))
    seen: dict[str, MessageEnvelope] = {}

    @billing.on("orders", "OrderPlaced")
    async def invoice(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        seen["second"] = event
        await uow.outbox.add("invoices", {}, event_type="Invoiced")

    @shop.on("invoices", "Invoiced")
    async def note(event: MessageEnvelope) -> None:
        seen["third"] = event

    app = FastAPI()
    app.add_middleware(RequestContextMiddleware)

    @app.post("/orders")
    async def place(
        uow: Annotated[SQLAlchemyUnitOfWork, Depends(unit_of_work(shop), scope="function")],
    ) -> str:
        record = await uow.outbox.add("orders", {}, event_type="OrderPlaced")
        await uow.commit()
        return record.id

    headers = {"X-Correlation-ID": "call-17", "traceparent": PARENT, "tracestate": "vendor=1"}
    async with shop.running(), billing.running(projector=False), client(app) as http:
        answer = await http.post("/orders", headers=headers)
        async with asyncio.timeout(30):
            while "third" not in seen:
                await asyncio.sleep(0.01)

    assert "call-17" == answer.headers["x-correlation-id"]
    expected = {"correlation_id": "call-17", "traceparent": PARENT, "tracestate": "vendor=1"}
    assert expected == seen["second"].metadata
    assert answer.json() == seen["second"].event_id
    assert ("call-17", answer.json()) == (seen["third"].correlation_id, seen["third"].causation_id)


async def test_starlette_without_fastapi(semel_storage: SqlAlchemyStorage) -> None:
    """The middleware is plain ASGI: any framework, and any way to add an event."""
    hub = Hub("shop", storage=semel_storage)

    async def place(_request: Request) -> JSONResponse:
        async with hub.unit_of_work() as uow:
            record = await uow.outbox.add("orders", {})
            await uow.commit()
        return JSONResponse(record.event_metadata)

    app = RequestContextMiddleware(Starlette(routes=[Route("/", place, methods=["POST"])]))
    async with client(app) as http:
        answers = await asyncio.gather(
            *(http.post("/", headers={"X-Correlation-ID": f"r{n}"}) for n in range(20))
        )

    assert [{"correlation_id": f"r{n}"} for n in range(20)] == [each.json() for each in answers]


async def test_background_tasks_belong_to_their_request(semel_storage: SqlAlchemyStorage) -> None:
    """What a request starts carries its id; what comes after it carries nothing."""
    app, seen = FastAPI(), []
    app.add_middleware(RequestContextMiddleware)

    async def later() -> None:
        seen.append(carried().get("correlation_id"))

    @app.post("/")
    def place(tasks: BackgroundTasks) -> str | None:
        tasks.add_task(later)
        return carried().get("correlation_id")

    async with client(app) as http:
        answer = await http.post("/", headers={"X-Correlation-ID": "call-17"})

    assert "call-17" == answer.json()
    assert ["call-17"] == seen
    assert not carried()


@pytest.mark.parametrize("inside", [False, True])
async def test_an_idempotency_key_is_the_cause(
    semel_storage: SqlAlchemyStorage, inside: bool
) -> None:
    """Claimed by a dependency, whichever middleware is around the other; not beyond the request."""
    hub, app = Hub("shop", storage=semel_storage), FastAPI()
    both = [(IdempotencyMiddleware, {"storage": semel_storage}), (RequestContextMiddleware, {})]
    for kind, options in both if inside else both[::-1]:
        app.add_middleware(kind, **options)

    claim = idempotency_key(principal=lambda: "ada", policy=IdempotencyPolicy(required=False))

    @app.post("/orders/{number}", dependencies=[Depends(claim)])
    async def place(
        number: int,
        uow: Annotated[SQLAlchemyUnitOfWork, Depends(unit_of_work(hub), scope="function")],
    ) -> dict[str, Any]:
        record = await uow.outbox.add("orders", {"n": number})
        await uow.commit()
        return dict(record.event_metadata)

    async with client(app) as http:
        headers = {"X-Correlation-ID": "call-17", "Idempotency-Key": "secret-key"}
        keyed = (await http.post("/orders/1", headers=headers)).json()
        plain = (await http.post("/orders/1", headers={"X-Correlation-ID": "call-18"})).json()

    digest = hashlib.sha256(b"secret-key").hexdigest()[:16]
    cause = f"request:{digest}:POST:/orders/{{number}}"
    assert {"correlation_id": "call-17", "causation_id": cause} == keyed
    assert {"correlation_id": "call-18"} == plain
    async with semel_storage.unit_of_work() as uow:
        assert {} == (await uow.outbox.add("orders", {})).event_metadata


async def test_a_function_that_runs_once_is_the_cause(semel_storage: SqlAlchemyStorage) -> None:
    """Of what it adds for the key's tenant."""

    async def place(uow: UnitOfWork) -> list[Any]:
        async with semel_storage.unit_of_work(tenant_id="other") as other:
            foreign = await other.outbox.add("orders", {})
        return [(await uow.outbox.add("orders", {})).event_metadata, foreign.event_metadata]

    own, foreign = await Idempotency(semel_storage).run("k", place, name="place")
    assert own["causation_id"].endswith(":CALL:place")
    assert {} == foreign


async def test_an_event_that_a_message_caused_keeps_its_conversation(
    semel_storage: SqlAlchemyStorage,
) -> None:
    """A handler that happens to run inside a request's context is not part of that request."""
    cause = MessageEnvelope(topic="orders", payload={}, metadata={"correlation_id": "first"})
    with carry({"correlation_id": "other", "traceparent": PARENT}):
        async with semel_storage.unit_of_work(cause=cause) as uow:
            record = await uow.outbox.add("invoices", {})

    assert {"correlation_id": "first", "causation_id": cause.event_id} == record.event_metadata


async def test_what_the_caller_gives_wins(semel_storage: SqlAlchemyStorage) -> None:
    """Metadata given with an event goes over that of the request."""
    with carry({"correlation_id": "request", "user_id": "ada"}):
        async with semel_storage.unit_of_work() as uow:
            record = await uow.outbox.add("orders", {}, metadata={"correlation_id": "mine"})

    assert {"correlation_id": "mine", "user_id": "ada"} == record.event_metadata


def test_the_trace_is_the_correlation_without_a_header() -> None:
    """A traced request needs no id of its own; without both it gets a new one."""
    assert TRACE == request_metadata(scope(("traceparent", PARENT)))["correlation_id"]
    first, second = (request_metadata(scope())["correlation_id"] for _ in range(2))
    assert UUID(first) != UUID(second)


@pytest.mark.parametrize(
    "value", ["", " ", "a" * 129, "ä", "a b", "a\tb", "<script>", 'a"b', "a,b", "a\x00"]
)
def test_a_correlation_id_that_could_do_harm_is_replaced(value: str) -> None:
    """It goes into logs, headers and databases: only plain characters get there."""
    assert UUID(request_metadata(scope(("x-correlation-id", value)))["correlation_id"])


@pytest.mark.parametrize(
    "value",
    [
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        f"00-{TRACE}-" + "0" * 16 + "-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        PARENT.upper(),
        PARENT + "-more",
        PARENT + "\n",
    ],
)
def test_a_malformed_trace_is_not_taken_over(value: str) -> None:
    """Neither it nor its state."""
    found = request_metadata(scope(("traceparent", value), ("tracestate", "vendor=1")))
    assert {"correlation_id"} == found.keys()


def test_ambiguous_headers_and_baggage() -> None:
    """Two of a kind are none; tracestate may come in parts; baggage never goes along."""
    twice = scope(("x-correlation-id", "a"), ("x-correlation-id", "b"), ("baggage", "user=ada"))
    assert request_metadata(twice)["correlation_id"] not in ("a", "b")
    parts = scope(("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2"))
    assert "a=1,b=2" == request_metadata(parts)["tracestate"]
    assert "baggage" not in request_metadata(twice)
    long = scope(("traceparent", PARENT), ("tracestate", "a" * 513))
    assert "tracestate" not in request_metadata(long)
