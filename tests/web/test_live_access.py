"""Live events: nobody sees what is not theirs, and nothing leaves that was not let out."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from semel import SqlAlchemyStorage
from semel.asgi.stream import Viewer
from tests.web.serving import publish, serving
from tests.web.streams import PATIENCE, Client, parse


def by_header(scope: Any) -> Viewer | None:
    """The tenant that a token stands for; without one, nothing."""
    tokens = {b"red": "red", b"blue": "blue"}
    given = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
    tenant = tokens.get(given)
    return None if tenant is None else Viewer(tenant_id=tenant, show=lambda m: m.payload)


async def test_without_permission(semel_storage: SqlAlchemyStorage) -> None:
    """Who is not authorised gets 403 and no stream, whatever it asks for."""
    async with serving(semel_storage, authorize=by_header) as (_, live):
        async with Client(live) as stranger:
            pass
        async with Client(live, query={"topic": "no-such-topic"}) as prober:
            pass
        assert 0 == live.clients

    assert 403 == stranger.status == prober.status
    assert "application/problem+json" == stranger.answer_headers["content-type"]
    assert stranger.text == prober.text


async def test_tenants_are_kept_apart(semel_storage: SqlAlchemyStorage) -> None:
    """A client sees its tenant's events only, and so it does when it comes back."""
    async with serving(semel_storage, authorize=by_header) as (hub, live):
        red, blue = {"Authorization": "Bearer red"}, {"Authorization": "Bearer blue"}
        async with Client(live, headers=red) as one, Client(live, headers=blue) as other:
            await one.ready()
            await other.ready()
            for number in range(10):
                await publish(hub, f"red {number}", tenant_id="red")
                await publish(hub, f"blue {number}", tenant_id="blue")
            await one.until(lambda: len(one.payloads) == 10)
            await other.until(lambda: len(other.payloads) == 10)
        start = next(event.id for event in parse(one.text) if event.id)
        async with Client(live, headers={**blue, "Last-Event-ID": start}) as thief:
            await thief.until(lambda: len(thief.payloads) == 10)
            await publish(hub, "the end", tenant_id="blue")
            await thief.until(lambda: thief.payloads[-1] == "the end")

    assert [f"red {number}" for number in range(10)] == one.payloads
    assert [f"blue {number}" for number in range(10)] == other.payloads
    assert not any(text.startswith("red") for text in thief.payloads)
    assert "red" not in thief.text


async def test_payloads_stay_inside_unless_shown(semel_storage: SqlAlchemyStorage) -> None:
    """By default an event's facts leave, and neither payload nor key nor metadata."""
    async with (
        serving(semel_storage, authorize=lambda _: Viewer()) as (hub, live),
        Client(live) as client,
    ):
        await client.ready()
        await publish(
            hub, {"secret": "CANARY-7f3"}, key="CANARY-7f3", metadata={"user_id": "CANARY-7f3"}
        )
        await client.until(lambda: bool(client.events))

    assert {"id", "type", "topic", "time"} == client.events[0].data.keys()
    assert "CANARY" not in client.text


async def test_filter_and_projection_per_client(semel_storage: SqlAlchemyStorage) -> None:
    """`allow` chooses events, `show` what of them leaves."""

    def authorize(_scope: Any) -> Viewer:
        return Viewer(
            allow=lambda message: message.payload["owner"] == "ada",
            show=lambda message: {"total": message.payload["total"]},
        )

    async with (
        serving(semel_storage, authorize=authorize) as (hub, live),
        Client(live) as client,
    ):
        await client.ready()
        for number, owner in enumerate(["eve", "ada", "eve", "ada"]):
            await publish(hub, {"owner": owner, "total": number, "card": "CANARY-7f3"})
        await client.until(lambda: len(client.payloads) == 2)

    assert [{"total": 1}, {"total": 3}] == client.payloads
    assert "CANARY" not in client.text


async def test_a_hook_that_fails_shows_nothing(
    semel_storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """In doubt an event stays inside; the stream goes on, and the log does not quote it."""
    caplog.set_level(logging.DEBUG, "semel.live")

    def authorize(_scope: Any) -> Viewer:
        return Viewer(show=lambda message: {"name": message.payload["name"]})

    async with (
        serving(semel_storage, authorize=authorize) as (hub, live),
        Client(live) as client,
    ):
        await client.ready()
        await publish(hub, {"other": "CANARY-7f3"}, {"name": "ada"})
        await client.until(lambda: bool(client.payloads))

    assert [{"name": "ada"}] == client.payloads
    assert "KeyError" in caplog.text
    assert "CANARY" not in caplog.text + client.text


async def test_topics_are_chosen_within_what_is_allowed(semel_storage: SqlAlchemyStorage) -> None:
    """A client may narrow the topics, and ask for none beyond its own."""

    def authorize(_scope: Any) -> Viewer:
        return Viewer(topics=["orders", "stock"], show=lambda message: message.payload)

    topics = ["orders", "stock", "payments"]
    async with (
        serving(semel_storage, authorize=authorize, topics=topics) as (hub, live),
        Client(live) as both,
        Client(live, query={"topic": ["stock"]}) as one,
        Client(live, query={"topic": ["stock", "payments"]}) as greedy,
    ):
        await both.ready()
        await one.ready()
        for topic in topics:
            await publish(hub, topic, topic=topic)
        await publish(hub, "end", topic="stock")
        await both.until(lambda: "end" in both.payloads and "orders" in both.payloads)
        await one.until(lambda: "end" in one.payloads)

    assert {"orders", "stock", "end"} == set(both.payloads)
    assert ["stock", "end"] == one.payloads
    assert 403 == greedy.status


async def test_heartbeats_carry_the_place(semel_storage: SqlAlchemyStorage) -> None:
    """An idle stream shows that it lives, and counts what was not for this client."""
    nobody = Viewer(allow=lambda _: False)
    async with (
        serving(semel_storage, authorize=lambda _: nobody, heartbeat_seconds=0.05) as (hub, live),
        Client(live) as client,
    ):
        await client.ready()
        first = client.place
        await publish(hub, *range(5))
        await client.until(lambda: client.place != first)
        seen = len(parse(client.text))
        await client.until(lambda: len(parse(client.text)) > seen + 2)

    assert not client.events


async def test_a_stream_ends_and_is_authorised_again(semel_storage: SqlAlchemyStorage) -> None:
    """After its time a stream closes; whoever may not come back does not get another one."""
    allowed = True

    def authorize(_scope: Any) -> Viewer | None:
        return Viewer() if allowed else None

    async with serving(semel_storage, authorize=authorize, max_seconds=0.2) as (_, live):
        async with Client(live) as client:
            async with asyncio.timeout(PATIENCE):
                await client.task
        assert client.ended
        allowed = False
        async with Client(live, headers={"Last-Event-ID": client.place}) as again:
            pass

    assert 403 == again.status


async def test_a_client_that_never_reads_is_let_go(semel_storage: SqlAlchemyStorage) -> None:
    """It holds neither its place among the clients nor the server's shutdown."""
    options = {"authorize": lambda _: Viewer(), "max_seconds": 0.2, "heartbeat_seconds": 0.1}
    async with serving(semel_storage, **options) as (_, live), Client(live) as client:
        client.rest()
        async with asyncio.timeout(PATIENCE):
            await client.task
        assert 0 == live.clients


async def test_limits_and_methods(semel_storage: SqlAlchemyStorage) -> None:
    """Too many clients, too many fields, another method: an answer that says so."""
    options = {"authorize": lambda _: Viewer(), "max_clients": 1}
    async with serving(semel_storage, **options) as (_, live), Client(live) as first:
        async with Client(live) as second:
            pass
        async with Client(live, method="POST") as posted:
            pass
        async with Client(live, query={"topic": ["orders"] * 101}) as flood:
            pass

    assert [200, 503, 405, 400] == [c.status for c in (first, second, posted, flood)]
    assert "GET" == posted.answer_headers["allow"]
