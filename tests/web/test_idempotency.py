"""One execution per key, and the same answer to every repetition, in one commit."""

from __future__ import annotations

import asyncio

import pytest

from tests.web.bank import PAID_ONCE, UNPAID, WAITING, Bank

PAY = {"account": "a-1", "cents": 100}
PROBLEM = "urn:semel:problem:"


async def test_a_repetition_gets_the_same_answer(bank: Bank) -> None:
    """Byte for byte, marked as a replay; the effect, its event and its answer are there once."""
    async with bank.client() as client:
        first = await client.post("/payments", json=PAY)
        again = await client.post("/payments", json=PAY)
    assert (201, 201) == (first.status_code, again.status_code)
    assert first.content == again.content
    assert "true" == again.headers["idempotent-replayed"]
    assert "idempotent-replayed" not in first.headers
    assert first.headers["location"] == again.headers["location"]
    assert first.headers["content-type"] == again.headers["content-type"]
    assert PAID_ONCE == await bank.books()
    [record] = await bank.keys()
    assert ("default", "ann", "POST", "/payments") == (
        record.tenant_id,
        record.principal,
        record.method,
        record.route,
    )
    assert "COMPLETED" == record.state


async def test_cookies_and_other_headers_stay_with_the_first_answer(bank: Bank) -> None:
    async with bank.client() as client:
        first = await client.post("/payments", json=PAY)
        client.cookies.clear()
        again = await client.post("/payments", json=PAY)
    assert "session=secret" in first.headers["set-cookie"]
    assert "x-request-id" in first.headers
    assert not {"set-cookie", "x-request-id"} & set(again.headers)
    [record] = await bank.keys()
    assert "secret" not in str(record.headers)


async def test_fifty_requests_at_once(bank: Bank) -> None:
    """One executes; the others wait for its answer."""
    bank.serve(policy=WAITING)
    async with bank.client() as client:
        answers = await asyncio.gather(*(client.post("/payments", json=PAY) for _ in range(50)))
    assert {201} == {answer.status_code for answer in answers}
    assert 1 == len({answer.content for answer in answers})
    assert 49 == sum("idempotent-replayed" in answer.headers for answer in answers)
    assert 1 == bank.app.state.calls["payments"]
    assert PAID_ONCE == await bank.books()


async def test_a_request_in_flight(bank: Bank) -> None:
    """Without a wait, the second is told to come again, and then gets the answer."""
    async with bank.client() as client:
        first = asyncio.create_task(client.post("/slow", json=PAY))
        await asyncio.wait_for(bank.app.state.gates["reached"].wait(), 30)
        second = await client.post("/slow", json=PAY)
        bank.app.state.gates["go"].set()
        answer = await first
        third = await client.post("/slow", json=PAY)
    assert 409 == second.status_code
    assert PROBLEM + "request-in-flight" == second.json()["type"]
    assert "application/problem+json" == second.headers["content-type"]
    assert "1" == second.headers["retry-after"]
    assert (200, answer.content) == (third.status_code, third.content)
    assert PAID_ONCE == await bank.books()


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("/payments", {"json": {"account": "a-1", "cents": 101}}),
        ("/payments?x=1", {"json": PAY}),
        ("/payments", {"json": {"cents": 100, "account": "a-1"}}),
    ],
    ids=["body", "query", "same-document-in-other-bytes"],
)
async def test_the_same_key_with_another_request(bank: Bank, path: str, other: dict) -> None:
    """The bytes of the body count, not their meaning."""
    async with bank.client() as client:
        await client.post("/payments", json=PAY)
        answer = await client.post(path, **other)
    assert (422, PROBLEM + "idempotency-key-reused") == (answer.status_code, answer.json()["type"])
    assert PAID_ONCE == await bank.books()


async def test_the_path_counts_within_a_route(bank: Bank) -> None:
    """A route is a template: the same key for another account is another request."""
    async with bank.client() as client:
        assert 201 == (await client.post("/accounts/a-1/payments", json=PAY)).status_code
        assert 422 == (await client.post("/accounts/a-2/payments", json=PAY)).status_code
    assert PAID_ONCE == await bank.books()
    assert ["/accounts/{account}/payments"] == [record.route for record in await bank.keys()]


async def test_others_have_their_own_keys(bank: Bank) -> None:
    """Another route, user or tenant with the same key is another call."""
    async with bank.client() as client:
        answers = [
            await client.post("/payments", json=PAY),
            await client.post("/accounts/a-1/payments", json=PAY),
            await client.post("/payments", json=PAY, headers={"x-user": "bob"}),
            await client.post("/payments", json=PAY, headers={"x-tenant": "acme"}),
        ]
    assert [201] * 4 == [answer.status_code for answer in answers]
    assert 4 == len({answer.content for answer in answers})
    assert (4, 400, 400, 4) == await bank.books()


async def test_an_expired_key_may_be_used_again(bank: Bank) -> None:
    """Even with another request; the database's clock decides."""
    async with bank.client() as client:
        first = await client.post("/payments", json=PAY)
        await bank.past("expires_at")
        again = await client.post("/payments", json=PAY | {"cents": 7})
    assert (201, 201) == (first.status_code, again.status_code)
    assert (2, 107, 107, 2) == await bank.books()


async def test_a_route_may_have_its_own_time_to_live(bank: Bank) -> None:
    """The default is a day."""
    async with bank.client() as client:
        await client.post("/payments", json=PAY)
        await client.post("/monthly")
    kept = {record.route: record.expires_at - record.created_at for record in await bank.keys()}
    assert {"/payments": 1, "/monthly": 30} == {route: span.days for route, span in kept.items()}


async def test_a_key_is_stored_as_a_hash(bank: Bank) -> None:
    key = "8e03978e-40d5-43e8-bc93-6894a57f9324"
    async with bank.client(**{"idempotency-key": key}) as client:
        await client.post("/payments", json=PAY)
    [record] = await bank.keys()
    assert (64, "8e03978e") == (len(record.key_hash), record.key_prefix)
    assert key not in str(vars(record))


async def test_without_authentication_nothing_is_claimed(bank: Bank) -> None:
    async with bank.client(**{"x-user": ""}) as client:
        assert 401 == (await client.post("/payments", json=PAY)).status_code
    assert UNPAID == await bank.books()
    assert [] == await bank.keys()


async def test_an_invalid_request_leaves_the_key_free(bank: Bank) -> None:
    """What is refused before it is executed may be corrected under the same key."""
    async with bank.client() as client:
        assert 422 == (await client.post("/payments", json={"cents": "many"})).status_code
        assert 201 == (await client.post("/payments", json=PAY)).status_code
    assert PAID_ONCE == await bank.books()
