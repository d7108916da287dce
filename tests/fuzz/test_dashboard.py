"""The dashboard under parameters, bodies and headers that its own pages never send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given, strategies as st

from semel import Hub, SqlAlchemyStorage
from semel.dashboard import views
from tests.dashboard.site import Site, make_site
from tests.fuzz.hostile import BOMBS, documents, fuzz, texts
from tests.services import Database

PAGES = sorted({view.path for view in views.VIEWS} | {view.api_path for view in views.VIEWS})
DEEDS = sorted(deed.path for deed in views.DEEDS)
NAMES = (
    *("tenant", "topic", "status", "key", "q", "before", "after", "limit", "since", "until", "id"),
    *("event_id", "event_type", "consumer", "consumer_name", "message_id", "state", "verb", "rate"),
    *("actor", "action", "error", "ids", "reason", "payload", "where", "dry_run", "partition"),
    *("owner", "scope", "principal", "route", "method", "key_hash", "language", "theme", "filter"),
)
odd = st.one_of(
    texts,
    st.sampled_from(
        [
            *("0", "-1", "1e3", "99999999999999999999", "24h", "99999d", "0001-01-01", "NEW", "٣"),
            *(
                "9999-12-31T23:59:59+14:00",
                "0001-01-01T00:00:00+14:00",
                "requeue",
                "true",
                "*",
                "'",
            ),
        ]
    ),
)


def escaped(text: str) -> str:
    return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")


@pytest.fixture
async def site(sqlite: Database) -> AsyncIterator[Site]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        async with storage.unit_of_work() as uow:
            for key in ("a", "b"):
                await uow.outbox.add("orders", {"n": 1}, key=key, event_id=f"e-{key}")
            await uow.commit()
        site = make_site(Hub("shop", storage=storage))
        async with site.dashboard:
            yield site


@given(
    path=st.sampled_from(PAGES),
    place=st.one_of(st.just("e-a"), odd),
    query=st.lists(st.tuples(st.sampled_from(NAMES), odd), max_size=4),
)
@fuzz(200)
async def test_any_query_is_answered(
    site: Site, path: str, place: str, query: list[tuple[str, str]]
) -> None:
    """A page, or what is wrong with the question: never a failure of ours."""
    for name in ("{event_id}", "{message_id}", "{name}", "{id}", "{job_id}"):
        path = path.replace(name, escaped(place) or "-")
    said = "&".join(f"{name}={escaped(value)}" for name, value in query)
    async with site.client("admin") as client:
        answer = await client.get(f"{path}?{said}")
    assert answer.status_code < 500, (path, query, answer.text)
    assert answer.status_code in (200, 303, 307, 400, 403, 404)


fields = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(odd, st.integers(), st.floats(), st.none(), st.booleans(), st.lists(odd, max_size=2)),
    max_size=5,
)


@given(path=st.sampled_from(DEEDS), body=st.one_of(fields.map(json.dumps), documents(fields)))
@fuzz(200)
async def test_any_body_is_answered(site: Site, path: str, body: Any) -> None:
    async with site.client("admin", **{"content-type": "application/json"}) as client:
        data = body.encode() if isinstance(body, str) else body
        answer = await client.post(path, content=data)
    assert answer.status_code < 500, (path, data, answer.text)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:8].hex())
async def test_a_bomb_is_refused(site: Site, bomb: bytes) -> None:
    async with site.client("admin", **{"content-type": "application/json"}) as client:
        for path in DEEDS:
            assert (await client.post(path, content=bomb)).status_code < 500, path


@given(
    name=st.sampled_from(
        [
            *("origin", "host", "authorization", "cookie", "accept-language", "last-event-id"),
            *("sec-fetch-site", "content-type", "accept", "if-none-match", "range"),
        ]
    ),
    value=st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [
                *(b"http://[", b"null", b"http://dashboard.test:x", b"[::1", b"a@b", b"Basic x"),
                *(b"Basic /w==", b"Bearer \xff", b"semel_language=\xff", b"bytes=0-0,1-1", b""),
            ]
        ),
    ),
    unsafe=st.booleans(),
)
@example(name="origin", value=b"http://[", unsafe=True)
@fuzz(150)
async def test_any_header_is_answered(site: Site, name: str, value: bytes, unsafe: bool) -> None:
    headers = {b"authorization": b"", b"host": b"dashboard.test"}
    async with site.client("admin") as client:
        headers[b"authorization"] = client.headers["authorization"].encode()
    headers[name.encode()] = value
    scope = {
        "type": "http",
        "method": "POST" if unsafe else "GET",
        "scheme": "http",
        "path": DEEDS[0] if unsafe else "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": list(headers.items()),
        "client": ("127.0.0.1", 1),
    }
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await site.dashboard(scope, receive, send)
    assert said[0]["status"] < 500
