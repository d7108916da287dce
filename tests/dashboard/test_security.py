"""Who comes in, from where, and what every answer carries."""

from __future__ import annotations

import logging

import httpx2
import pytest

from semel.dashboard import (
    ADMIN,
    Account,
    BasicAuth,
    Principal,
    ProxyAuth,
    TokenAuth,
    create_dashboard,
    hash_password,
    hash_token,
)
from semel.dashboard.guard import HEADERS
from semel.dashboard.views import DEEDS
from semel.errors import ConfigurationError
from semel.hub import Hub
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing import FakeClock
from tests.dashboard.rows import dead
from tests.dashboard.site import PASSWORD, TOKEN, Site, basic, make_site

REQUEUE = "/api/events/requeue"


def client(app, **headers: str) -> httpx2.AsyncClient:
    """One that sends only what it is told to."""
    transport = httpx2.ASGITransport(app=app, client=("10.0.0.9", 1))
    return httpx2.AsyncClient(
        transport=transport, base_url="http://dashboard.test", headers=headers
    )


def test_no_dashboard_without_authentication(storage: SqlAlchemyStorage) -> None:
    hub = Hub("shop", storage=storage)

    with pytest.raises(ConfigurationError, match="insecure_allow_anonymous=True"):
        create_dashboard(hub)
    with pytest.raises(ConfigurationError, match="exclude"):
        create_dashboard(hub, auth=TokenAuth(robots()), insecure_allow_anonymous=True)


def robots() -> list[Account]:
    return [Account(name="robot", secret_hash=hash_token(TOKEN), actions=ADMIN)]


async def test_anonymous_visitors_only_look(
    storage: SqlAlchemyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so aloud; they come by localhost, see no payload, and change nothing."""
    await dead(storage, "one", payload={"card": "4111"})
    with caplog.at_level(logging.WARNING, "semel.dashboard"):
        app = create_dashboard(Hub("shop", storage=storage), insecure_allow_anonymous=True)
    assert "insecure_allow_anonymous" in caplog.text

    async with app, client(app, **{"host": "localhost:80", "sec-fetch-site": "same-origin"}) as us:
        seen = await us.get("/api/event", params={"id": "one"})
        assert 200 == seen.status_code
        assert "4111" not in seen.text
        assert 403 == (await us.post(REQUEUE, json={"ids": ["one"]})).status_code
        assert 400 == (await us.get("/", headers={"host": "evil.example"})).status_code


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({}, False),
        ({"origin": "http://dashboard.test"}, True),
        ({"origin": "https://dashboard.test"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://dashboard.test.evil.example"}, False),
        ({"origin": "http://dashboard.test:81"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://dashboard.test"}, False),
    ],
)
async def test_changes_come_from_our_own_pages(
    site: Site, storage: SqlAlchemyStorage, headers: dict[str, str], allowed: bool
) -> None:
    """A browser sends Basic credentials wherever a request comes from; we look where from."""
    await dead(storage, "one")
    async with client(site.dashboard, authorization=basic("admin"), **headers) as us:
        answer = await us.post(REQUEUE, json={"ids": ["one"]})

    assert (200 if allowed else 403) == answer.status_code
    record = await storage.outbox.get("one")
    assert record is not None
    assert ("NEW" if allowed else "DEAD") == record.status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"cookie": "a=b"}, 403),
        ({"cookie": "a=b", "sec-fetch-site": "none"}, 403),
    ],
)
async def test_programs_with_a_token(
    site: Site, storage: SqlAlchemyStorage, headers: dict[str, str], status: int
) -> None:
    """No browser sends a token by itself, so it may come without fetch metadata."""
    await dead(storage, "one")
    async with client(site.dashboard, authorization=f"Bearer {TOKEN}", **headers) as us:
        assert status == (await us.post(REQUEUE, json={"ids": ["one"]})).status_code


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_post_changes_anything(site: Site, method: str) -> None:
    async with site.client("admin") as us:
        for deed in DEEDS:
            if method == "GET" and deed.path in ("/api/jobs", "/api/pauses"):
                continue
            answer = await us.request(method, deed.path, params={"ids": "one"})
            assert answer.status_code in (404, 405), deed.path


async def test_a_form_of_another_site_is_no_json(site: Site, storage: SqlAlchemyStorage) -> None:
    await dead(storage, "one")
    async with site.client("admin", **{"content-type": "text/plain"}) as us:
        assert 415 == (await us.post(REQUEUE, content='{"ids": ["one"]}')).status_code


@pytest.mark.parametrize("path", ["/", "/api/overview", "/static/app.js", "/nope", "/api/nope"])
@pytest.mark.parametrize("name", ["admin", "nobody", None])
async def test_every_answer_is_hardened(site: Site, path: str, name: str | None) -> None:
    async with site.client(name) as us:
        answer = await us.get(path)

    for header, value in HEADERS.items():
        assert value == answer.headers[header]
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "access-control-allow-origin" not in answer.headers
    if not path.startswith("/static"):
        assert "no-store" == answer.headers["cache-control"]
    if name is None:
        assert 401 == answer.status_code
        assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    "host", ["evil.example", "dashboard.test@evil.example", "a/b", "x:port", "[::1", ""]
)
async def test_other_hosts_are_refused(storage: SqlAlchemyStorage, host: str) -> None:
    """A poisoned Host header reaches nothing."""
    site = make_site(Hub("shop", storage=storage), hosts=["dashboard.test"])
    async with site.client("admin", host=host) as us:
        assert 400 == (await us.get("/outbox")).status_code
    async with site.client("admin", host="Dashboard.test:8080") as us:
        assert 200 == (await us.get("/outbox")).status_code


@pytest.mark.parametrize(
    "given",
    ["", "Basic", "Basic !!!", "Basic YWRtaW4=", "Bearer x", "Digest a", "Basic " + "A" * 99],
)
async def test_malformed_credentials(site: Site, given: str) -> None:
    async with site.client(None, authorization=given) as us:
        assert 401 == (await us.get("/")).status_code


async def test_wrong_passwords_are_slowed_down(site: Site) -> None:
    """Ten are enough for a minute, whatever the name; who is in stays in."""
    clock = FakeClock()
    ann = Account(name="ann", secret_hash=hash_password(PASSWORD))
    app = create_dashboard(site.hub, auth=BasicAuth([ann], clock=clock))
    async with client(app) as us:
        inside = {"authorization": basic("ann")}
        assert 200 == (await us.get("/jobs", headers=inside)).status_code
        for number in range(10):
            wrong = {"authorization": basic(f"name-{number % 2}", "wrong")}
            assert 401 == (await us.get("/jobs", headers=wrong)).status_code
        answer = await us.get("/jobs", headers={"authorization": basic("ann", "wrong")})

        assert 429 == answer.status_code
        assert "60" == answer.headers["retry-after"]
        assert 200 == (await us.get("/jobs", headers=inside)).status_code


async def test_a_proxy_is_trusted_by_its_address(storage: SqlAlchemyStorage) -> None:
    def who(name: str) -> Principal | None:
        return Principal(name=name) if name == "ann" else None

    hub = Hub("shop", storage=storage)
    near = create_dashboard(hub, auth=ProxyAuth(who, proxies=["10.0.0.0/24"]))
    far = create_dashboard(hub, auth=ProxyAuth(who, proxies=["10.9.0.0/24"]))
    for app, name, status in ((near, "ann", 200), (near, "eve", 401), (far, "ann", 401)):
        async with client(app, **{"x-forwarded-user": name}) as us:
            assert status == (await us.get("/jobs")).status_code
    with pytest.raises(ConfigurationError, match="addresses"):
        ProxyAuth(who, proxies=[])


async def test_read_only_takes_every_action_away(
    storage: SqlAlchemyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_DASHBOARD_READ_ONLY", "1")
    site = make_site(Hub("shop", storage=storage))
    await dead(storage, "one", payload={"card": "4111"})
    async with site.client("admin") as us:
        assert "4111" in (await us.get("/event", params={"id": "one"})).text
        assert 403 == (await us.post(REQUEUE, json={"ids": ["one"]})).status_code


async def test_preferences_are_cookies_that_scripts_cannot_read(site: Site) -> None:
    async with site.client("viewer") as us:
        answer = await us.post("/api/preferences", json={"language": "zh", "theme": "dark"})
        cookies = answer.headers.get_list("set-cookie")
        assert 2 == len(cookies)
        assert all("HttpOnly" in each and "SameSite=lax" in each for each in cookies)
        page = await us.get("/outbox")
        assert "发件箱" in page.text
        assert 'data-theme="dark"' in page.text
        wrong = await us.post("/api/preferences", json={"theme": '"><script>'})
        assert 400 == wrong.status_code


@pytest.mark.parametrize("secret", ["", "plain text", "sha256:short", "scrypt:1"])
def test_secrets_are_hashes(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="hash_password"):
        Account(name="ann", secret_hash=secret)
    with pytest.raises(ConfigurationError):
        hash_password("short")
    with pytest.raises(ConfigurationError):
        hash_token("short")
