"""The middleware alone: bad keys, routes that it protects itself, and other frameworks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar, Request as LitestarRequest, post
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from semel import IdempotencyMiddleware, IdempotencyPolicy, idempotent_call
from semel.asgi.http import Scope, single
from semel.errors import ConfigurationError
from tests.web.bank import PAID_ONCE, UNPAID, Bank, Order, pay

pytestmark = pytest.mark.parametrize("vault", ["sqlite"], indirect=True)

PROBLEM = "urn:semel:problem:"


def who(scope: Scope) -> str | None:
    return single(scope, b"x-user")


@pytest.mark.parametrize(
    "key",
    ["", " ", '""', "x" * 256, "two words", '"open', b"schl\xfcssel", "a\x7f"],
    ids=["empty", "blank", "empty-quoted", "long", "words", "open", "latin", "control"],
)
async def test_malformed_keys(bank: Bank, key: str | bytes) -> None:
    """400, and nothing is executed or stored."""
    async with bank.client() as client:
        headers: Any = {b"idempotency-key": key if isinstance(key, bytes) else key.encode()}
        answer = await client.post("/payments", json={}, headers=headers)
    assert (400, PROBLEM + "idempotency-key-malformed") == (
        answer.status_code,
        answer.json()["type"],
    )
    assert "application/problem+json" == answer.headers["content-type"]
    assert UNPAID == await bank.books()
    assert [] == await bank.keys()


async def test_missing_and_repeated_keys(bank: Bank) -> None:
    """Missing where it is required: 400. Where it is not: executed each time."""
    async with bank.client() as client:
        del client.headers["idempotency-key"]
        missing = await client.post("/payments", json={})
        optional = [await client.post("/monthly") for _ in range(2)]
        two: Any = [("idempotency-key", "a"), ("idempotency-key", "b"), ("x-user", "ann")]
        repeated = await client.post("/payments", json={}, headers=two)
    assert (400, PROBLEM + "idempotency-key-missing") == (
        missing.status_code,
        missing.json()["type"],
    )
    assert 400 == repeated.status_code
    assert optional[0].content != optional[1].content
    assert UNPAID == await bank.books()
    assert [] == await bank.keys()


async def test_quoted_and_bare_are_the_same_key(bank: Bank) -> None:
    async with bank.client() as client:
        first = await client.post("/payments", json={})
        quoted = await client.post("/payments", json={}, headers={"idempotency-key": '"k-1"'})
    assert first.content == quoted.content
    assert PAID_ONCE == await bank.books()


async def test_a_request_too_large_to_compare(bank: Bank) -> None:
    bank.serve(max_request_bytes=100)
    async with bank.client() as client:
        answer = await client.post("/payments", json={"account": "x" * 200})
    assert (413, PROBLEM + "request-too-large") == (answer.status_code, answer.json()["type"])
    assert UNPAID == await bank.books()


async def test_the_openapi_document(bank: Bank) -> None:
    """Protected routes show the header and its problems; others do not."""
    app = bank.app
    app.post("/open")(lambda: None)
    schema = app.openapi()
    assert schema == app.openapi()
    operation = schema["paths"]["/payments"]["post"]
    [header] = [p for p in operation["parameters"] if p["name"] == "Idempotency-Key"]
    assert ("header", True) == (header["in"], header["required"])
    pattern = header["schema"].pop("pattern")
    assert {"type": "string", "minLength": 1, "maxLength": 255} == header["schema"]
    assert all(re.match(pattern, key) for key in ("a-1", 'a"b', '"a b"'))
    assert not any(re.match(pattern, key) for key in ("", " ", "a b", '"a', '" "', "\u00e4"))
    assert {"201", "400", "401", "409", "413", "422", "503"} <= set(operation["responses"])
    for status in ("400", "409", "422"):
        content = operation["responses"][status]["content"]
        assert {"$ref": "#/components/schemas/IdempotencyProblem"} == content[
            "application/problem+json"
        ]["schema"]
    assert "application/json" in operation["responses"]["422"]["content"]
    [optional] = [
        p
        for p in schema["paths"]["/monthly"]["post"]["parameters"]
        if p["name"] == "Idempotency-Key"
    ]
    assert not optional["required"]
    assert "409" not in schema["paths"]["/open"]["post"]["responses"]


async def test_the_openapi_document_of_routes_that_the_middleware_protects(bank: Bank) -> None:
    bank.serve(routes=["/open"], principal=who)
    bank.app.post("/open")(lambda: None)
    operation = bank.app.openapi()["paths"]["/open"]["post"]
    assert ["Idempotency-Key"] == [p["name"] for p in operation["parameters"]]
    assert {"400", "409", "422"} <= set(operation["responses"])


class Plain:
    """A service without a unit of work, in some framework."""

    def __init__(self) -> None:
        self.calls = 0

    async def starlette(self, request: Request) -> JSONResponse:
        self.calls += 1
        return JSONResponse({"calls": self.calls, "got": (await request.json())["n"]}, 201)

    async def fails(self, _request: Request) -> JSONResponse:
        self.calls += 1
        return JSONResponse({"calls": self.calls}, [503, 404][self.calls % 2])

    async def events(self, _request: Request) -> StreamingResponse:
        self.calls += 1

        async def body() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"

        return StreamingResponse(body(), media_type="text/event-stream")


def starlette(plain: Plain, *others: Middleware, bank: Bank, **options: Any) -> Starlette:
    options = {"routes": ["/orders/{order}/pay", "/fails"], "principal": who} | options
    middleware = Middleware(IdempotencyMiddleware, storage=bank.storage, **options)
    return Starlette(
        routes=[
            Route("/orders/{order}/pay", plain.starlette, methods=["POST"]),
            Route("/open", plain.starlette, methods=["POST"]),
            Route("/fails", plain.fails, methods=["POST"]),
            Route("/events", plain.events, methods=["POST"]),
        ],
        middleware=[middleware, *others],
    )


async def test_starlette(bank: Bank) -> None:
    """The middleware claims by template, method and principal; other routes are not concerned."""
    plain = Plain()
    async with bank.client(starlette(plain, bank=bank)) as client:
        first, again = [await client.post("/orders/1/pay", json={"n": 5}) for _ in range(2)]
        assert (201, b'{"calls":1,"got":5}') == (first.status_code, first.content)
        assert (201, first.content) == (again.status_code, again.content)
        assert 422 == (await client.post("/orders/2/pay", json={"n": 5})).status_code
        other = await client.post("/orders/1/pay", json={"n": 5}, headers={"x-user": "bob"})
        assert b'{"calls":2,"got":5}' == other.content
        for expected in (3, 4):
            assert expected == (await client.post("/open", json={"n": 5})).json()["calls"]
        nobody = await client.post("/orders/1/pay", json={"n": 5}, headers={"x-user": ""})
        assert (401, PROBLEM + "caller-unknown") == (nobody.status_code, nobody.json()["type"])
    assert {"/orders/{order}/pay"} == {record.route for record in await bank.keys()}


async def test_errors_without_a_unit_of_work_release_the_key(bank: Bank) -> None:
    """Neither 4xx nor 5xx are kept."""
    plain = Plain()
    async with bank.client(starlette(plain, bank=bank)) as client:
        statuses = [(await client.post("/fails", json={})).status_code for _ in range(4)]
    assert [404, 503, 404, 503] == statuses
    assert [] == await bank.keys()


async def test_a_tenant_per_request(bank: Bank) -> None:
    plain = Plain()
    app = starlette(plain, bank=bank, tenant=lambda scope: single(scope, b"x-tenant"))
    async with bank.client(app) as client:
        for tenant in ("a", "b", "a", "no\ttenant" * 20):
            answer = await client.post("/orders/1/pay", json={"n": 5}, headers={"x-tenant": tenant})
    assert 2 == plain.calls
    assert (400, PROBLEM + "tenant-invalid") == (answer.status_code, answer.json()["type"])


async def test_an_event_stream_is_passed_on_at_once(bank: Bank) -> None:
    plain = Plain()
    async with bank.client(starlette(plain, bank=bank, routes=["/events"])) as client:
        assert b"data: 1\n\n" == (await client.post("/events")).content
        assert 409 == (await client.post("/events")).status_code
    assert 1 == plain.calls


async def test_behind_other_middleware(bank: Bank) -> None:
    """That turns every answer into a stream, as Starlette's base class does."""

    async def passes(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    plain = Plain()
    app = starlette(plain, Middleware(BaseHTTPMiddleware, dispatch=passes), bank=bank)
    async with bank.client(app) as client:
        first, again = [await client.post("/orders/1/pay", json={"n": 5}) for _ in range(2)]
    assert (1, first.content) == (plain.calls, again.content)


async def test_a_handler_slower_than_its_lease_keeps_it(bank: Bank) -> None:
    """Without a transaction nothing could undo it: the lease is renewed while it runs."""
    go, renewed = asyncio.Event(), asyncio.Event()
    original = bank.storage.idempotency.renew

    async def renew(*args: Any, **options: Any) -> bool:
        kept = await original(*args, **options)
        renewed.set()
        return kept

    bank.storage.idempotency.renew = renew  # type: ignore[method-assign]

    async def slow(_request: Request) -> JSONResponse:
        await go.wait()
        return JSONResponse({})

    policy = IdempotencyPolicy(lease=timedelta(seconds=5))
    options: Any = {"storage": bank.storage, "routes": {"/slow": policy}, "principal": who}
    app = Starlette(
        routes=[Route("/slow", slow, methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, **options)],
    )
    async with bank.client(app) as client:
        first = asyncio.create_task(client.post("/slow"))
        await asyncio.wait_for(renewed.wait(), 60)
        [record] = await bank.keys()
        assert record.locked_until is not None
        assert timedelta(seconds=6) < record.locked_until - record.created_at
        go.set()
        assert 200 == (await first).status_code


async def test_a_starlette_route_that_claims_and_commits_by_itself(bank: Bank) -> None:
    """The full promise without FastAPI."""

    async def place(request: Request) -> JSONResponse:
        call = idempotent_call(request.scope)
        assert call is not None
        await call.claim(principal=request.headers["x-user"], route="/place")
        async with bank.hub.unit_of_work() as uow:
            call.adopt(uow)
            return JSONResponse(await pay(uow, Order()))

    app = Starlette(
        routes=[Route("/place", place, methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, storage=bank.storage)],
    )
    async with bank.client(app) as client:
        first, again = [await client.post("/place") for _ in range(2)]
    assert (200, first.content) == (again.status_code, again.content)
    assert PAID_ONCE == await bank.books()


async def test_litestar(bank: Bank) -> None:
    """Routes that the middleware protects, and one that claims by itself."""
    calls = 0

    @post("/counted")
    async def counted() -> dict[str, int]:
        nonlocal calls
        calls += 1
        return {"calls": calls}

    @post("/place")
    async def place(request: LitestarRequest[Any, Any, Any]) -> dict[str, Any]:
        call = idempotent_call(request.scope)  # type: ignore[arg-type]
        assert call is not None
        await call.claim(principal=request.headers["x-user"], route="/place")
        async with bank.hub.unit_of_work() as uow:
            call.adopt(uow)
            return await pay(uow, Order())

    options: Any = {"storage": bank.storage, "routes": ["/counted"], "principal": who}
    app = Litestar(
        [counted, place], middleware=[DefineMiddleware(IdempotencyMiddleware, **options)]
    )
    async with bank.client(app) as client:
        for path in ("/counted", "/place"):
            first, again = [await client.post(path) for _ in range(2)]
            assert (201, first.content) == (again.status_code, again.content)
            assert "true" == again.headers["idempotent-replayed"]
    assert 1 == calls
    assert PAID_ONCE == await bank.books()


async def test_wrong_wiring(bank: Bank) -> None:
    """What cannot work is refused at once, or said in the error."""
    with pytest.raises(ConfigurationError, match="principal"):
        IdempotencyMiddleware(FastAPI(), storage=bank.storage, routes=["/orders"])
    with pytest.raises(ConfigurationError, match="list"):
        IdempotencyMiddleware(FastAPI(), storage=bank.storage, routes="/orders", principal=who)
    for template in ("orders", "/orders/{", "/orders/{1}"):
        with pytest.raises(ConfigurationError, match="route"):
            IdempotencyMiddleware(FastAPI(), storage=bank.storage, routes=[template], principal=who)
    with pytest.raises(ConfigurationError, match="set-cookie"):
        IdempotencyPolicy(replay_headers=["Set-Cookie"])
    for options in ({"keep": -1}, {"lease": 0}, {"wait": -1}):
        with pytest.raises(ConfigurationError, match="longer than nothing"):
            IdempotencyPolicy(**{name: timedelta(days=n) for name, n in options.items()})
    bank.app.user_middleware.clear()
    bank.app.middleware_stack = None
    async with bank.client() as client:
        assert 500 == (await client.post("/payments", json={})).status_code
    assert UNPAID == await bank.books()
