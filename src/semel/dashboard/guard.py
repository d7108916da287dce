"""What every request passes before anything looks at it, and every answer on its way out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.dashboard.access import DashboardAuth, Principal
from semel.errors import describe

PRINCIPAL = "semel.principal"
SAFE = frozenset({"GET", "HEAD"})
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_logger = logging.getLogger("semel.dashboard")


class Guard:
    """Checks the host, who it is, and that a change was asked for by our own pages."""

    def __init__(self, app: ASGIApp, *, auth: DashboardAuth, hosts: Collection[str] | None) -> None:
        self._app = app
        self._auth = auth
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("the dashboard answers HTTP requests only")
        request = Request(scope, receive)
        hardened = _harden(send)
        refusal = await self._refuse(request)
        await (refusal or self._app)(scope, receive, hardened)

    async def _refuse(self, request: Request) -> Response | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return PlainTextResponse("This host is not served here.", 400)
        if request.method not in SAFE | {"POST"}:
            return PlainTextResponse("GET, HEAD and POST only.", 405, headers={"Allow": "GET"})
        try:
            found = self._auth.authenticate(request)
            answer = await found if inspect.isawaitable(found) else found
        except Exception as error:  # noqa: BLE001  whoever cannot be asked lets nobody in
            _logger.error("authentication failed: %s", describe(error))
            return PlainTextResponse("Nobody can be let in at the moment.", 503)
        if not isinstance(answer, Principal):
            return answer
        if request.method not in SAFE and not is_same_origin(request, bearer=answer.bearer):
            return PlainTextResponse("This request comes from another site.", 403)
        request.scope[PRINCIPAL] = answer
        return None

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        return name is not None and (self._hosts is None or name in self._hosts)


def is_same_origin(request: Request, *, bearer: bool) -> bool:
    """Tell whether our own pages, or a program with a token of its own, sent the request."""
    sites = request.headers.getlist("sec-fetch-site")
    if sites:
        if sites == ["same-origin"]:
            return True
        return sites == ["none"] and bearer and "cookie" not in request.headers
    origins = request.headers.getlist("origin")
    if not origins:
        return bearer and "cookie" not in request.headers
    if len(origins) != 1:
        return False
    try:
        origin = urlsplit(origins[0])
    except ValueError:
        return False
    schemes = {request.scope["scheme"], "https"}  # a proxy in front may have ended TLS
    return origin.scheme in schemes and origin.netloc == request.headers["host"]


def _hostname(host: str) -> str | None:
    """Return the name in a Host header without its port; None if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  raises for what is no number
    except ValueError:
        return None
    if parts.netloc != host or "@" in host or not parts.hostname:
        return None
    return parts.hostname


def _harden(send: Send) -> Send:
    async def hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", ())}
            own = [
                (name.encode(), value.encode())
                for name, value in (HEADERS | {"cache-control": "no-store"}).items()
                if name.encode() not in given
            ]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return hardened
