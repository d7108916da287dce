"""Names are text, whatever they contain; questions are bounded, whatever they ask."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from semel.dashboard.views import VIEWS
from semel.hub import Hub
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.states import IdempotencyKey
from tests.dashboard.rows import dead, handled
from tests.dashboard.site import Site, make_site

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "</textarea></pre><svg/onload=alert(1)>",
    "a&tenant=globex#/../?%00%2f",
)


class Structure(HTMLParser):
    """The elements of a page and the names of their attributes; no text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(sorted(name for name, _ in attrs))))
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert "style" != name
            if name in ("href", "src", "action"):
                assert (value or "").startswith(("/", "#")), value


def structure(text: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = Structure()
    parser.feed(text)
    return parser.found


async def pages(storage: SqlAlchemyStorage, name: str) -> dict[str, Any]:
    """Every page of a hub where everything has this name."""
    hub = Hub(name, storage=storage)
    tenant = name[:64]
    await dead(
        storage,
        name,
        tenant=tenant,
        topic=name,
        event_type=name,
        key=name,
        error=name,
        stack=name,
        payload={name: name},
        schema_id=name,
        routing_key=name,
        aggregate_type="t",
        aggregate_id=name,
        metadata={"correlation_id": name, "causation_id": name, "x": name},
    )
    await handled(
        storage,
        name,
        tenant_id=tenant,
        consumer_name=name,
        event_type=name,
        source=name,
        handler=name,
        reason=name,
        status="DEAD",
        payload_hash="h",
    )
    await storage.outbox.pause(topic=name, reason=name, actor=name)
    key = IdempotencyKey(
        tenant_id=tenant, principal=name, method="POST", route=name, key_hash="0", key_prefix="k"
    )
    from datetime import timedelta

    hour = timedelta(hours=1)
    await storage.idempotency.claim(key, fingerprint="f", lease=hour, keep=hour)
    site = make_site(hub)
    found = {}
    async with site.dashboard, site.client("admin") as us:
        await site.dashboard.live.sample()
        for view in VIEWS:
            query = {"id": name, "consumer": name, "of": tenant, "tenant": tenant}
            if view.path not in ("/event", "/edit", "/message"):
                query = {}
            answer = await us.get(view.path, params=query)
            assert 200 == answer.status_code, (view.path, answer.text[:500])
            found[view.path] = answer.text
        empty = await us.get("/outbox", params={"topic": name, "error": name, "key": name})
        found["filtered"] = empty.text
    return found


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_are_text(storage: SqlAlchemyStorage, name: str, tmp_path: Any) -> None:
    """A page has the same elements as with harmless names."""
    plain = "n" * len(name)
    async with SqlAlchemyStorage(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}") as other:
        await other.initialize()
        expected = await pages(other, plain)
    found = await pages(storage, name)

    for path, text in found.items():
        assert structure(expected[path]) == structure(text), path


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "99999999999999999999999"},
        {"limit": "-1"},
        {"before": "abc"},
        {"since": "yesterday"},
        {"since": "0001-01-01T00:00+14:00"},
        {"since": "2026-01-02", "until": "2026-01-01"},
        {"status": "GONE"},
        {"topic": "x" * 5000},
        {"topic": "a\x00b"},
        {"tenant": "x" * 500},
        {"key": "\ud800".encode("utf-8", "surrogatepass")},
    ],
)
@pytest.mark.parametrize("path", ["/outbox", "/api/outbox", "/inbox", "/audit", "/idempotency"])
async def test_nonsense_is_answered(site: Site, path: str, query: dict[str, Any]) -> None:
    """Bad parameters get a 400 that says why, or do not matter; never a 500."""
    async with site.client("admin") as us:
        answer = await us.get(path, params=query)
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/events/requeue", {}),
        ("/api/events/requeue", {"ids": []}),
        ("/api/events/requeue", {"ids": [1]}),
        ("/api/events/requeue", {"ids": ["x"] * 1000}),
        ("/api/events/edit", {"id": "x"}),
        ("/api/events/edit", {"id": {"a": 1}}),
        ("/api/jobs/requeue", {}),
        ("/api/jobs/requeue", {"where": {"statuss": "DEAD"}}),
        ("/api/jobs/requeue", {"where": {"topic": 1}}),
        ("/api/jobs/requeue", {"where": {}, "limit": 0}),
        ("/api/jobs/cancel", {"id": []}),
        ("/api/pauses/pause", {"topic": "a", "tenant_id": "b"}),
        ("/api/leases/release", {}),
        ("/api/leases/release", {"partition": "1"}),
        ("/api/inbox/forget", {"message_id": None}),
        ("/api/idempotency/release", {"tenant_id": "a"}),
    ],
)
async def test_bad_bodies_do_nothing(
    site: Site, storage: SqlAlchemyStorage, path: str, body: dict[str, Any]
) -> None:
    async with site.client("admin") as us:
        answer = await us.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert "application/problem+json" == answer.headers["content-type"]
    assert [] == await storage.audit.search()


@pytest.mark.parametrize("body", [b"[]", b"{", b"null", b"[" * 100_000, b"x" * 3_000_000])
async def test_bodies_that_are_no_objects(site: Site, body: bytes) -> None:
    async with site.client("admin", **{"content-type": "application/json"}) as us:
        assert (await us.post("/api/events/requeue", content=body)).status_code in (400, 413)
