"""Requests with an `Idempotency-Key`, as no honest client sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from semel import IdempotencyMiddleware, SqlAlchemyStorage
from semel.errors import ConfigurationError, IdempotencyKeyMissingError, InvalidMessageError
from semel.idempotency.keys import parse_key, scoped_key
from tests.fuzz.hostile import CANARY, fuzz, tells_nothing, texts
from tests.services import Database

LIMIT = 2000

keys = st.one_of(
    st.just(b"k-1"),
    st.binary(max_size=20),
    st.text(st.characters(max_codepoint=255), max_size=20).map(lambda text: text.encode("latin-1")),
    st.sampled_from(
        [b'"', b'""', b'"a"', b'"a\\"', b'"\\', b"a b", b" a ", b"x" * 255, b"x" * 256]
    ),
)
kinds = st.one_of(
    st.sampled_from(
        [
            *(b"application/json", b"multipart/form-data", b"multipart/form-data; boundary="),
            *(b'multipart/form-data; boundary="', b"multipart/mixed; boundary=a", b"\xff\x00"),
        ]
    ),
    st.binary(max_size=20),
)
bodies = st.lists(
    st.one_of(st.binary(max_size=30), st.sampled_from([b"", b"--a\r\n", b"x" * LIMIT])), max_size=4
)


class Service:
    """Answers anything, and counts how often it had to."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        while (await receive()).get("more_body"):
            pass
        start = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b"%d" % self.calls})


class Caller:
    """One request after the other, down to the bytes."""

    def __init__(self, storage: SqlAlchemyStorage) -> None:
        self.service = Service()
        self.user: str | None = "ann"
        self.app = IdempotencyMiddleware(
            self.service,
            storage=storage,
            routes=["/"],
            principal=lambda _: self.user,
            tenant=lambda scope: scope["tenant"],
            max_request_bytes=LIMIT,
        )

    async def ask(
        self, given: list[bytes], kind: bytes, body: list[bytes], *, gone: bool, tenant: str
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        parts = [
            {"type": "http.request", "body": part, "more_body": number + 1 < len(body)}
            for number, part in enumerate(body or [b""])
        ]
        if gone:
            parts[-1] = {"type": "http.disconnect"}
        said: list[dict[str, Any]] = []

        async def receive() -> Any:
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        headers = [(b"content-type", kind), *((b"idempotency-key", key) for key in given)]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        await self.app(scope | {"tenant": tenant}, receive, send)
        start, *rest = said
        return start["status"], dict(start["headers"]), b"".join(part["body"] for part in rest)


@pytest.fixture
async def caller(sqlite: Database) -> AsyncIterator[Caller]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await storage.initialize()
        yield Caller(storage)


@given(
    given=st.lists(keys, min_size=1, max_size=2),
    kind=kinds,
    body=bodies,
    user=st.one_of(st.just("ann"), st.none(), texts),
    tenant=st.one_of(st.just("default"), texts),
    gone=st.sampled_from([False] * 5 + [True]),
)
@example(given=[b"k"], kind=b"", body=[], user="\ud800", tenant="default", gone=False)
@example(given=[b"k"], kind=b"", body=[], user="ann", tenant="\ud800", gone=False)
@fuzz(150)
async def test_any_request_is_answered(
    caller: Caller,
    given: list[bytes],
    kind: bytes,
    body: list[bytes],
    user: str | None,
    tenant: str,
    gone: bool,
) -> None:
    """Executed once and then repeated, or refused with a problem that says why."""
    caller.user = user
    before = caller.service.calls
    status, headers, answer = await caller.ask(given, kind, body, gone=gone, tenant=tenant)
    assert status in (200, 400, 401, 403, 409, 413, 422)
    if status != 200:
        assert before == caller.service.calls
        assert b"application/problem+json" == headers[b"content-type"]
        assert {"type", "title", "status", "detail"} <= set(json.loads(answer))
        assert len(answer) < 1000
        return
    again = await caller.ask(given, kind, body, gone=False, tenant=tenant)
    assert (200, answer) == (again[0], again[2])
    assert b"true" == again[1][b"idempotent-replayed"]
    assert caller.service.calls <= before + 1


async def test_a_stream_without_end_is_cut(caller: Caller) -> None:
    """What is over the limit is refused before all of it is in memory."""
    read = 0

    async def receive() -> Any:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b"x" * 500, "more_body": True}

    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    headers = [(b"idempotency-key", b"k"), (b"content-length", b"10")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    await caller.app(scope | {"tenant": "default"}, receive, send)
    assert (413, LIMIT // 500 + 1, 0) == (said[0]["status"], read, caller.service.calls)


@given(value=st.one_of(texts, keys.map(lambda key: key.decode("latin-1"))))
@fuzz(300)
def test_any_header_is_a_key_or_refused(value: str) -> None:
    try:
        key = parse_key(value)
    except IdempotencyKeyMissingError as error:
        tells_nothing(error)
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert key == parse_key(f'"{escaped}"')


scopes = st.fixed_dictionaries(
    {
        "key": texts,
        "principal": st.one_of(
            texts, texts.map(lambda t: t * 300), st.just(CANARY), st.just("sha256:" + "a" * 64)
        ),
        "route": texts,
        "method": st.sampled_from(["POST", "PATCH"]),
        "tenant_id": st.one_of(st.just("default"), texts),
    }
)


@given(one=scopes, two=scopes)
@fuzz(300)
def test_scopes_that_differ_never_share_a_key(one: dict[str, str], two: dict[str, str]) -> None:
    """And whatever a scope is, the database can store it."""
    try:
        first, second = scoped_key(**one), scoped_key(**two)
    except (IdempotencyKeyMissingError, ConfigurationError, InvalidMessageError) as error:
        tells_nothing(error)
        return
    assert (first == second) is (one == two)
    for name in (first.principal, first.route):
        assert len(name.encode()) <= 4 * 255


def test_nobody_can_take_the_name_that_a_long_name_is_stored_under() -> None:
    """Long names are hashed: a principal that calls itself like such a hash is somebody else."""
    long = "x" * 300
    stored = scoped_key("k", method="POST", route="/", principal=long).principal
    assert stored != scoped_key("k", method="POST", route="/", principal=stored).principal
