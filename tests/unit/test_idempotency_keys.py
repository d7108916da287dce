"""What is a key, what is stored of it, and what makes two requests the same."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from semel.asgi.request import RequestBody, fingerprint
from semel.errors import ConfigurationError, IdempotencyKeyMissingError, InvalidMessageError
from semel.idempotency.keys import parse_key, scoped_key

PRINTABLE = [chr(code) for code in range(0x20, 0x7F)]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("k", "k"),
        ("8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        ('"8e03978e"', "8e03978e"),
        (' "8e03978e"\t', "8e03978e"),
        ('"with space"', "with space"),
        (r'"say \"a\" \\"', r'say "a" \\'.replace(r"\\", "\\")),
        ("x" * 255, "x" * 255),
    ],
)
def test_keys(value: str, key: str) -> None:
    """Bare, or a string of RFC 8941."""
    assert key == parse_key(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        '""',
        '"  "',
        '"open',
        '"a"b',
        '"a";p=1',
        '"a", "b"',
        r'"\n"',
        '"tab\t"',
        "two words",
        "x" * 256,
        '"' + "x" * 256 + '"',
        "key\x7f",
        "key\x00",
        "schl\xfcssel",
        '"schl\xfcssel"',
    ],
)
def test_malformed_keys(value: str) -> None:
    with pytest.raises(IdempotencyKeyMissingError):
        parse_key(value)


@given(st.text(PRINTABLE, min_size=1, max_size=255))
def test_every_printable_key_can_be_quoted(key: str) -> None:
    """And comes back as it was, if it is not all white space."""
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if key.strip():
        assert key == parse_key(quoted)
    else:
        with pytest.raises(IdempotencyKeyMissingError):
            parse_key(quoted)


@given(st.text(max_size=300))
def test_any_value_is_a_key_or_refused(value: str) -> None:
    """Nothing else is raised, and what is accepted can be stored."""
    try:
        key = parse_key(value)
    except IdempotencyKeyMissingError:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()


@given(st.text(min_size=1, max_size=255).filter(str.strip), st.text(min_size=1, max_size=600))
def test_what_is_stored(key: str, name: str) -> None:
    """A hash, at most a quarter of the key, and names that fit their columns."""
    scoped = scoped_key(key, method="CALL", route=name, principal=name)
    assert 64 == len(scoped.key_hash)
    assert len(scoped.key_prefix) <= min(8, len(key) / 4)
    assert len(scoped.route) <= 255
    assert "\x00" not in scoped.principal


def test_scopes() -> None:
    """Long names are told apart; a principal and a valid tenant are needed."""
    long = [scoped_key("k", method="POST", route="/" + "x" * 300 + c, principal="p") for c in "ab"]
    assert long[0].route != long[1].route
    with pytest.raises(ConfigurationError, match="principal"):
        scoped_key("k", method="POST", route="/", principal="")
    with pytest.raises(InvalidMessageError):
        scoped_key("k", method="POST", route="/", principal="p", tenant_id="")


def request(**changes: object) -> dict[str, object]:
    scope = {"method": "POST", "path": "/a", "query_string": b"", "headers": []}
    return scope | changes


@pytest.mark.parametrize(
    "other",
    [
        (request(method="PATCH"), b"body"),
        (request(path="/b"), b"body"),
        (request(query_string=b"x"), b"body"),
        (request(headers=[(b"content-type", b"text/plain")]), b"body"),
        (request(), b"bodY"),
        (request(path="/ab", query_string=b"ody"), b""),
    ],
)
def test_other_requests(other: tuple[dict, bytes]) -> None:
    assert fingerprint(request(), b"body") != fingerprint(*other)


def test_headers_beside_the_type_do_not_count() -> None:
    other = request(headers=[(b"user-agent", b"x"), (b"traceparent", b"y")])
    assert fingerprint(request(), b"body") == fingerprint(other, b"body")


def test_the_boundary_of_a_form_does_not_count() -> None:
    def form(boundary: bytes, value: bytes) -> str:
        kind = b"multipart/form-data; boundary=" + boundary
        body = b'--%b\r\nname="a"\r\n\r\n%b\r\n--%b--\r\n' % (boundary, value, boundary)
        return fingerprint(request(headers=[(b"content-type", kind)]), body)

    assert form(b"abc", b"1") == form(b"xyz", b"1")
    assert form(b"abc", b"1") != form(b"abc", b"2")


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6), st.integers(0, 6))
async def test_a_body_is_read_once_and_seen_by_both(parts: list[bytes], first: int) -> None:
    """Whoever reads first, the application gets every message in order, and the reader all."""
    messages = [
        {"type": "http.request", "body": part, "more_body": n < len(parts) - 1}
        for n, part in enumerate(parts)
    ]
    left = list(messages)

    async def receive() -> dict:
        return left.pop(0)

    body = RequestBody(receive, limit=1000)
    seen = [await body.receive() for _ in range(min(first, len(messages)))]
    assert b"".join(parts) == await body.read()
    assert body.complete
    seen += [await body.receive() for _ in range(len(messages) - len(seen))]
    assert messages == seen


async def test_a_body_beyond_the_limit_is_not_read() -> None:
    """Reading stops where the limit is passed; a client that goes away leaves it incomplete."""
    asked = 0

    async def receive() -> dict:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    body = RequestBody(receive, limit=250)
    assert b"" == await body.read()
    assert (3, True) == (asked, body.too_large)

    async def gone() -> dict:
        return {"type": "http.disconnect"}

    body = RequestBody(gone, limit=250)
    assert b"" == await body.read()
    assert not body.complete
    assert {"type": "http.disconnect"} == await body.receive()
