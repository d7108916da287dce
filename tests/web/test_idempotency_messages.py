"""What an application may send besides plain answers, and what the middleware lets alone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from semel import IdempotencyMiddleware, IdempotencyPolicy
from tests.web.bank import Bank

pytestmark = pytest.mark.parametrize("vault", ["sqlite"], indirect=True)

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/x")]}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Wire:
    """Calls an application that sends given messages, through the middleware."""

    def __init__(self, bank: Bank, *messages: dict[str, Any], **options: Any) -> None:
        self.calls = 0
        self._messages = messages
        settings: Any = {"routes": ["/a"], "principal": lambda _: "ann"} | options
        self.app = IdempotencyMiddleware(self._answer, storage=bank.storage, **settings)

    async def _answer(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.calls += 1
        for message in self._messages:
            await send(dict(message))

    async def post(self, *, key: bytes = b"k", path: str = "/a") -> list[dict[str, Any]]:
        """Return what a server would be given to send."""
        sent: list[dict[str, Any]] = []
        requests = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not requests:
                await asyncio.Event().wait()
            return requests.pop()

        async def send(message: Any) -> None:
            sent.append(dict(message))

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        await self.app(scope | {"headers": [(b"idempotency-key", key)]}, receive, send)
        return sent


async def test_pieces_are_put_together(bank: Bank) -> None:
    """The client gets every byte, once they are durable, and so does a repetition."""
    wire = Wire(bank, START, body(b"a", more=True), body(b"b", more=True), body(b"c"))
    assert [START, body(b"abc")] == await wire.post()
    again = await wire.post()
    assert b"abc" == again[1]["body"]
    assert (b"idempotent-replayed", b"true") in again[0]["headers"]
    assert (b"content-type", b"text/x") in again[0]["headers"]
    assert 1 == wire.calls


@pytest.mark.parametrize(
    "messages",
    [
        (START, {"type": "http.response.pathsend", "path": "/file"}),
        (START | {"trailers": True}, END, {"type": "http.response.trailers", "headers": []}),
        (START | {"headers": [(b"content-length", b"9999999")]}, END),
        (START | {"headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")]}, END),
        (START, body(b"x" * 600, more=True), body(b"y" * 600, more=True), END),
        (START, body(b"x" * 1200)),
    ],
    ids=["file", "trailers", "long", "events", "grows", "huge"],
)
async def test_what_cannot_be_kept_passes_unchanged(bank: Bank, messages: Any) -> None:
    """And is not executed again."""
    wire = Wire(bank, *messages, policy=IdempotencyPolicy(max_response_bytes=1000))
    sent = await wire.post()
    assert messages[0] == sent[0]
    assert b"".join(m.get("body", b"") for m in messages) == b"".join(
        m.get("body", b"") for m in sent
    )
    assert [m["type"] for m in messages if m["type"] != "http.response.body"] == [
        m["type"] for m in sent if m["type"] != "http.response.body"
    ]
    await bank.past("locked_until")
    assert 409 == (await wire.post())[0]["status"]
    assert 1 == wire.calls
    assert ["COMMITTED"] == [record.state for record in await bank.keys()]


async def test_messages_before_the_answer(bank: Bank) -> None:
    """An early hint goes out at once."""
    hint = {"type": "http.response.early_hint", "links": []}
    wire = Wire(bank, hint, START, END)
    assert [hint, START, body(b"")] == await wire.post()
    assert 200 == (await wire.post())[0]["status"]


async def test_an_application_that_does_not_finish(bank: Bank) -> None:
    """Nothing is kept of it, and the key is free."""
    assert [START, body(b"a")] == await Wire(bank, START, body(b"a", more=True)).post()
    assert [] == await Wire(bank).post()
    assert [] == await bank.keys()


async def test_other_scopes_and_a_second_middleware(bank: Bank) -> None:
    """Lifespan and WebSockets are passed on; of two middlewares the outer one works."""
    wire = Wire(bank, START, END)
    for kind in ("lifespan", "websocket"):
        await wire.app({"type": kind}, None, _ignore)  # type: ignore[arg-type]
    assert 2 == wire.calls
    wire.app = IdempotencyMiddleware(
        wire.app, storage=bank.storage, routes=["/a"], principal=lambda _: "ann"
    )
    assert [200, 200] == [(await wire.post())[0]["status"] for _ in range(2)]
    assert 3 == wire.calls


async def test_a_key_that_nobody_claims(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    """Is said once."""
    refused = Wire(bank, START | {"status": 401}, END)
    wire = Wire(bank, START, END)
    with caplog.at_level(logging.WARNING):
        await refused.post(path="/open")
        assert [] == caplog.records
        for _ in range(2):
            await wire.post(path="/open", key=b"CANARY")
    [record] = caplog.records
    assert "does not claim it (POST '/open')" in record.getMessage()
    assert "CANARY" not in caplog.text


async def _ignore(_message: Any) -> None:
    pass
