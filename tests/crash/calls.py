"""Requests and functions with a key: repeated, failing, taken over from somebody who died."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from semel import IdempotencyMiddleware, SQLAlchemyUnitOfWork
from semel.asgi.call import idempotent_call
from semel.hashing import payload_hash
from semel.idempotency import Idempotency
from semel.idempotency.keys import scoped_key
from semel.testing import FakeClock
from tests.crash.story import Story, effect
from tests.crash.world import LEASE_SECONDS, Books, World

_LEASE = timedelta(seconds=LEASE_SECONDS)
_SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/pay",
    "query_string": b"",
    "headers": [(b"idempotency-key", b'"request-1"'), (b"content-type", b"application/json")],
}


async def run(world: World) -> None:
    calls = Idempotency(world.storage, lease=_LEASE)

    async def pay(uow: SQLAlchemyUnitOfWork) -> dict[str, str]:
        effect(uow, "pay", "function")
        await uow.outbox.add("payments", {}, key="a")
        return {"receipt": str(uuid4())}

    async def fail(uow: SQLAlchemyUnitOfWork) -> None:
        effect(uow, "pay", "undone")
        raise LookupError

    async def inherited(uow: SQLAlchemyUnitOfWork) -> dict[str, str]:
        effect(uow, "pay", "inherited")
        return {"receipt": str(uuid4())}

    with suppress(LookupError):  # of which nothing is kept, and the key is free
        await calls.run("function-1", fail, name="pay")
    for _ in range(2):
        world.note(key="function-1", answer=await calls.run("function-1", pay, name="pay"))
    await _die_with_a_key(world)
    answer = await calls.run("inherited-1", inherited, name="inherited")
    world.note(key="inherited-1", answer=answer)
    await _without_transaction(world)
    for _ in range(2):
        await _request(world)


async def _die_with_a_key(world: World) -> None:
    """Claim a key as somebody who then dies would."""
    key = scoped_key("inherited-1", method="CALL", route="inherited", principal="system")
    await world.storage.idempotency.claim(
        key, fingerprint=str(payload_hash(None)), lease=timedelta(0), keep=timedelta(hours=1)
    )


async def _without_transaction(world: World) -> None:
    """A function that lasts longer than a third of its lease, by a clock that we move."""
    clock = FakeClock()
    calls = Idempotency(world.storage, lease=_LEASE, clock=clock)

    async def mail() -> dict[str, str]:
        renewed = asyncio.Event()
        renew = world.storage.idempotency.renew

        async def renewing(*args: Any, **kwargs: Any) -> bool:
            result = await renew(*args, **kwargs)
            asyncio.get_running_loop().call_soon(renewed.set)
            return result

        world.storage.idempotency.renew = renewing  # type: ignore[method-assign]
        while not renewed.is_set():
            clock.advance(LEASE_SECONDS / 3)
            await asyncio.sleep(0.01)
        return {"receipt": str(uuid4())}

    for _ in range(2):
        world.note(key="mail-1", answer=await calls.run("mail-1", mail, name="mail"))


async def _request(world: World) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with world.storage.unit_of_work() as uow:
            call = idempotent_call(scope)
            assert call is not None
            call.adopt(uow)
            effect(uow, "pay", "request")
            await uow.outbox.add("payments", {}, key="a")
            await uow.commit()
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": str(uuid4()).encode()})

    middleware = IdempotencyMiddleware(
        app, storage=world.storage, routes=["/pay"], principal=lambda _: "ann"
    )
    sent: dict[str, Any] = {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.update(message)

    await middleware(dict(_SCOPE), receive, send)
    world.note(key="request-1", answer=[sent["status"], sent["body"].decode()])


async def check(books: Books) -> None:
    books.same("payments", ["function", "inherited", "request"], await books.effects("pay"))
    await books.answers()
    statuses = {each["answer"][0] for each in books.world.noted() if each["key"] == "request-1"}
    if statuses != {201}:
        books.add("answer", f"the request was answered {statuses}")
    await books.nothing_left(unsent="payments")


STORY = Story("calls", run, check, about=("idempotency", "request", "write"))
