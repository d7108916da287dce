"""Handlers that fail, stream, are cancelled or outlive their lease; stores that are down."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest
from sqlalchemy import event

from semel import IdempotencyPolicy, SqlAlchemyStorage
from tests.web.bank import PAID_ONCE, UNPAID, Bank

PAY = {"account": "a-1", "cents": 100}
PROBLEM = "urn:semel:problem:"
SCOPES = pytest.mark.parametrize("scope", ["function", "request"])
SQLITE = pytest.mark.parametrize("vault", ["sqlite"], indirect=True)


@SCOPES
async def test_a_handler_that_raises_after_its_commit(bank: Bank, scope: str) -> None:
    """All is undone, since nothing was durable, and the key may be used again."""
    bank.serve(scope=scope)
    async with bank.client() as client:
        assert 500 == (await client.post("/raises", json=PAY)).status_code
        assert UNPAID == await bank.books()
        assert [] == await bank.keys()
        assert 200 == (await client.post("/raises", json=PAY)).status_code
    assert PAID_ONCE == await bank.books()


@SCOPES
@pytest.mark.parametrize(
    ("status", "commits", "executions", "books"),
    [
        (500, True, 2, UNPAID),
        (503, True, 2, UNPAID),
        (402, True, 1, PAID_ONCE),
        (404, False, 2, UNPAID),
        (500, False, 2, UNPAID),
    ],
)
async def test_which_answers_are_kept(
    bank: Bank, scope: str, status: int, commits: bool, executions: int, books: tuple[int, ...]
) -> None:
    """Below 500 with a commit: kept, with the effect. Otherwise undone, and executed again."""
    bank.serve(scope=scope)
    async with bank.client() as client:
        for _ in range(2):
            answer = await client.post(f"/answers/{status}?commits={commits}", json=PAY)
            assert status == answer.status_code
    assert executions == bank.app.state.calls["answers"]
    assert books == await bank.books()


@SQLITE
async def test_statuses_kept_are_a_setting(bank: Bank) -> None:
    bank.serve(policy=IdempotencyPolicy(keep_statuses=range(200, 501)))
    async with bank.client() as client:
        for path in ("/answers/500?commits=true", "/answers/404?commits=false"):
            for _ in range(2):
                await client.post(path, json=PAY, headers={"idempotency-key": path})
    assert 2 == bank.app.state.calls["answers"]
    assert PAID_ONCE == await bank.books()


@SCOPES
async def test_a_long_answer_is_not_kept(bank: Bank, scope: str) -> None:
    """50 MB pass through without filling memory; within the lease 409, later 409 for good."""
    bank.serve(scope=scope)
    size, app = 0, bank.app
    scope_: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/streams/800",
        "raw_path": b"/streams/800",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"x-user", b"ann"), (b"idempotency-key", b"k-1")],
        "server": ("bank", 80),
        "client": ("127.0.0.1", 1),
    }

    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()
        return requests.pop()

    async def send(message: Any) -> None:
        nonlocal size
        size += len(message.get("body", b""))

    tracemalloc.start()
    await app(scope_, receive, send)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 800 * 65536 == size
    assert 8_000_000 > peak
    assert PAID_ONCE == await bank.books()
    async with bank.client() as client:
        during = await client.post("/streams/800")
        await bank.past("locked_until")
        after = await client.post("/streams/800")
    assert (409, PROBLEM + "request-in-flight") == (during.status_code, during.json()["type"])
    assert (409, PROBLEM + "answer-not-kept") == (after.status_code, after.json()["type"])
    assert "retry-after" not in after.headers
    assert PAID_ONCE == await bank.books()
    assert ["COMMITTED"] == [record.state for record in await bank.keys()]


@SQLITE
async def test_a_short_stream_is_kept_unless_the_policy_says_otherwise(bank: Bank) -> None:
    async with bank.client() as client:
        first, again = [await client.post("/streams/2") for _ in range(2)]
    assert (131072, first.content) == (len(first.content), again.content)
    bank.serve(policy=IdempotencyPolicy(keep_streams=False))
    async with bank.client(**{"idempotency-key": "k-2"}) as client:
        assert 200 == (await client.post("/streams/2")).status_code
        assert 409 == (await client.post("/streams/2")).status_code
    assert (2, 200, 200, 2) == await bank.books()


@SCOPES
@pytest.mark.parametrize("path", ["/twice", "/session-commit"])
async def test_a_second_commit_raises(bank: Bank, scope: str, path: str) -> None:
    """So does one past the unit of work: it could not include the answer."""
    bank.serve(scope=scope)
    async with bank.client() as client:
        assert 500 == (await client.post(path)).status_code
    assert UNPAID == await bank.books()
    assert [] == await bank.keys()


@SCOPES
async def test_a_background_task_does_not_carry_the_key(bank: Bank, scope: str) -> None:
    """It runs after the answer, once, and commits by itself."""
    bank.serve(scope=scope)
    async with bank.client() as client:
        first, again = [await client.post("/background") for _ in range(2)]
    assert (200, first.content) == (again.status_code, again.content)
    assert (2, 105, 100, 1) == await bank.books()


@SCOPES
async def test_a_commit_that_fails(bank: Bank, scope: str) -> None:
    """Nothing is durable, nothing was sent, and the next try succeeds."""
    bank.serve(scope=scope)
    failures = ["the disk is full"]

    def fail(connection: Any) -> None:
        written = connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT"
        if written and failures and connection.info.get("armed"):
            raise OSError(failures.pop())

    def arm(connection: Any, _c: Any, sql: str, *_: Any) -> None:
        if sql.startswith("UPDATE idempotency"):
            connection.info["armed"] = True

    engine = bank.storage.engine.sync_engine
    event.listen(engine, "commit", fail)
    event.listen(engine, "before_cursor_execute", arm)
    try:
        async with bank.client() as client:
            failed = await client.post("/payments", json=PAY)
            assert UNPAID == await bank.books()
            answer = await client.post("/payments", json=PAY)
    finally:
        event.remove(engine, "commit", fail)
        event.remove(engine, "before_cursor_execute", arm)
    assert (503, "1") == (failed.status_code, failed.headers["retry-after"])
    assert PROBLEM + "idempotency-unavailable" == failed.json()["type"]
    assert 201 == answer.status_code
    assert "idempotent-replayed" not in answer.headers
    assert PAID_ONCE == await bank.books()


@SCOPES
async def test_a_request_that_outlives_its_lease_is_undone(bank: Bank, scope: str) -> None:
    """Another one takes the key over; the first finds its token gone, and rolls back."""
    bank.serve(scope=scope)
    slow = bank.app
    bank.serve(scope=scope)
    bank.app.state.gates["go"].set()
    async with bank.client(slow) as zombie, bank.client() as client:
        first = asyncio.create_task(zombie.post("/slow", json=PAY))
        await asyncio.wait_for(slow.state.gates["reached"].wait(), 30)
        await bank.past("locked_until")
        second = await client.post("/slow", json=PAY)
        slow.state.gates["go"].set()
        late = await first
        again = await client.post("/slow", json=PAY)
    assert (200, 409, "1") == (second.status_code, late.status_code, late.headers["retry-after"])
    assert (second.content, "true") == (again.content, again.headers["idempotent-replayed"])
    assert PAID_ONCE == await bank.books()


@SCOPES
async def test_a_cancelled_handler(bank: Bank, scope: str) -> None:
    """All is undone and the key is free."""
    bank.serve(scope=scope)
    async with bank.client() as client:
        request = asyncio.create_task(client.post("/slow", json=PAY))
        await asyncio.wait_for(bank.app.state.gates["reached"].wait(), 30)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert [] == await bank.keys()
        bank.app.state.gates["go"].set()
        assert 200 == (await client.post("/slow", json=PAY)).status_code
    assert PAID_ONCE == await bank.books()


async def test_a_request_cancelled_while_it_commits(bank: Bank) -> None:
    """What began to commit is committed, with its answer."""
    request: asyncio.Task[Any]

    def cancel(_connection: Any, _c: Any, sql: str, *_: Any) -> None:
        if sql.startswith("UPDATE idempotency"):
            request.cancel()

    engine = bank.storage.engine.sync_engine
    event.listen(engine, "before_cursor_execute", cancel)
    async with bank.client() as client:
        request = asyncio.create_task(client.post("/payments", json=PAY))
        await asyncio.gather(request, return_exceptions=True)
        event.remove(engine, "before_cursor_execute", cancel)
        assert request.cancelled()
        again = await client.post("/payments", json=PAY)
    assert "true" == again.headers["idempotent-replayed"]
    assert PAID_ONCE == await bank.books()


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy"])
@SQLITE
async def test_a_store_that_is_down(bank: Bank, driver: str) -> None:
    """503, and the handler is not run; nothing about the address is told."""
    async with SqlAlchemyStorage(f"{driver}://semel:CANARY@127.0.0.1:9/none") as down:
        bank.hub.storage = down
        bank.serve()
        async with bank.client() as client:
            answer = await client.post("/outside")
    assert (503, "1") == (answer.status_code, answer.headers["retry-after"])
    assert PROBLEM + "idempotency-unavailable" == answer.json()["type"]
    assert not {"CANARY", "127.0.0.1"} & set(answer.text.split())
    assert 0 == bank.app.state.calls["outside"]
