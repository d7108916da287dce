"""One event: why it is where it is, what led to it, what followed; and below another path."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.dashboard.rows import add, dead, handled
from tests.dashboard.site import Site, basic, make_site
from tests.dashboard.workload import call, make_hub, place


async def event(site: Site, event_id: str, name: str = "admin") -> dict[str, Any]:
    async with site.client(name) as us:
        answer = await us.get("/api/event", params={"id": event_id})
    assert 200 == answer.status_code
    return dict(answer.json())


def ids(nodes: list[dict[str, Any]]) -> list[str]:
    return [node["event_type"] for node in nodes]


async def test_from_the_request_to_the_last_event(storage: SqlAlchemyStorage) -> None:
    """Order, reservation and invoice are one chain, seen from each of them."""
    hub = make_hub(storage)
    site = make_site(hub)
    async with hub.running():
        order = await place(hub, 7, key="ada")
        await hub.drain()
        found = await event(site, order)
        [reserved] = found["graph"]["following"]
        middle = await event(site, reserved["id"])
        [invoice] = middle["graph"]["following"]
        last = await event(site, invoice["id"])

    assert ["StockReserved"] == ids(found["graph"]["following"])
    assert ("req-7", []) == (found["graph"]["origin"], found["graph"]["causes"])
    assert ["shop"] == [each["consumer_name"] for each in found["graph"]["handlers"]]
    assert ["OrderPlaced"] == ids(middle["graph"]["causes"])
    assert ["OrderPlaced", "StockReserved"] == ids(last["graph"]["causes"])
    assert "req-7" == last["graph"]["origin"]
    assert ["sent"] == [reason["kind"] for reason in last["why"]]
    steps = [step["what"] for step in found["timeline"]]
    assert ["occurred", "committed"] == steps[:2]
    assert {"sent", "handled"} == set(steps[2:])


async def test_a_graph_begins_at_the_requests_key(storage: SqlAlchemyStorage) -> None:
    """The key is told by its hash, as the page of keys does; the caller is not told at all."""
    hub = make_hub(storage)
    site = make_site(hub)
    async with hub.running():
        order = await call(hub, 7, "client-key-1")
        assert order == await call(hub, 7, "client-key-1")
        await hub.drain()
        first = await event(site, order, "acme-viewer")
        last = await event(site, first["graph"]["following"][0]["id"], "acme-viewer")
        async with site.client("acme-viewer") as us:
            [row] = (await us.get("/api/idempotency", params={"route": "/checkout"})).json()["rows"]

    request = {"key": row["key_hash"][:16], "method": "POST", "route": "/checkout"}
    assert (request, None, []) == (
        first["graph"]["request"],
        first["graph"]["origin"],
        first["graph"]["causes"],
    )
    assert (request, ["OrderPlaced"]) == (last["graph"]["request"], ids(last["graph"]["causes"]))
    assert "client-key" not in str((first, last))
    assert "app-1" not in str((first, last))


async def test_another_tenants_key_is_not_shown(storage: SqlAlchemyStorage) -> None:
    """An event that a request of one tenant adds for another one does not tell of the request."""
    site = make_site(make_hub(storage))
    found = await event(site, await call(site.hub, 7, "client-key-1", tenant="globex"))
    assert None is found["graph"]["request"]
    assert "checkout" not in str(found)


@pytest.mark.parametrize(
    "cause", ["request:", "request:0:POST:/x", "request:" + "z" * 16 + ":P:/x"]
)
async def test_what_only_looks_like_a_request(
    site: Site, storage: SqlAlchemyStorage, cause: str
) -> None:
    await add(storage, "a", metadata={"causation_id": cause})
    found = await event(site, "a")
    assert (None, cause) == (found["graph"]["request"], found["graph"]["origin"])


async def test_another_tenants_cause_is_not_shown(site: Site, storage: SqlAlchemyStorage) -> None:
    await add(storage, "theirs", tenant="globex", event_type="Secret")
    await add(storage, "ours", metadata={"causation_id": "theirs"})
    await handled(storage, "ours", tenant_id="globex")

    found = await event(site, "ours", "acme-viewer")

    assert ("theirs", [], []) == (
        found["graph"]["origin"],
        found["graph"]["causes"],
        found["graph"]["handlers"],
    )


async def test_circles_end(site: Site, storage: SqlAlchemyStorage) -> None:
    await add(storage, "a", metadata={"causation_id": "b"})
    await add(storage, "b", metadata={"causation_id": "a"})
    assert ["b"] == [node["id"] for node in (await event(site, "a"))["graph"]["causes"]]


async def test_why_names_the_event_in_front(site: Site, storage: SqlAlchemyStorage) -> None:
    """The page links to it."""
    await dead(storage, "first", key="k")
    await add(storage, "second", key="k")

    found = await event(site, "second")

    reasons = {reason["kind"]: reason for reason in found["why"]}
    assert "first" == reasons["blocked"]["data"]["event_id"]
    assert "no_projector" in reasons
    async with site.client("viewer") as us:
        page = await us.get("/event", params={"id": "second"})
    assert "/event?id=first" in page.text


@pytest.mark.parametrize("path", ["/", "/outbox", "/event?id=one"])
async def test_mounted_below_another_path(
    site: Site, storage: SqlAlchemyStorage, path: str
) -> None:
    """Every address on the page begins with the path that it is mounted at."""
    await dead(storage, "one")
    app = Starlette(routes=[Mount("/ops/semel", site.dashboard)])
    headers = {"authorization": basic("admin"), "sec-fetch-site": "same-origin"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://shop.test", headers=headers
    ) as us:
        answer = await us.get(f"/ops/semel{path}")
        assert 200 == answer.status_code
        for part in answer.text.split('href="')[1:]:
            assert part.startswith(("/ops/semel/", "#")), part[:60]
        assert 200 == (await us.get("/ops/semel/static/app.js")).status_code
        chosen = await us.post("/ops/semel/api/preferences", json={"theme": "dark"})
        assert "Path=/ops/semel" in chosen.headers["set-cookie"]
        assert 404 == (await us.get("/ops/semel/nope")).status_code
