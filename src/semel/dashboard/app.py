"""The dashboard as an ASGI application: routes, each with the action that it needs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from typing import Self

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from semel.asgi.shutdown import on_exit_signal
from semel.dashboard import stream, views
from semel.dashboard.access import Anonymous, DashboardAuth, ReadOnly
from semel.dashboard.calls import Call
from semel.dashboard.guard import Guard
from semel.dashboard.jobs import Jobs
from semel.dashboard.live import Live
from semel.dashboard.rendering import HERE, page
from semel.dashboard.views.base import Deed, View
from semel.errors import ConfigurationError, SchemaError, SemelError, StorageError, describe
from semel.hub import Hub
from semel.protocols import Clock
from semel.sqlalchemy.storage import DATABASE_ERRORS

Endpoint = Callable[[Request], Awaitable[Response]]

LOCAL = ("localhost", "127.0.0.1", "::1")
_READ_SECONDS = 20.0
_ON = frozenset({"1", "true", "yes", "on"})
_logger = logging.getLogger("semel.dashboard")


class Dashboard:
    """See `create_dashboard`."""

    def __init__(
        self,
        hub: Hub,
        *,
        auth: DashboardAuth,
        hosts: Collection[str] | None,
        sample_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        self.hub = hub
        self.auth = auth
        self.live = Live(hub, seconds=sample_seconds, clock=clock)
        self.jobs = Jobs(hub.storage.outbox, changed=self.live.touch)
        self.streams = 0
        self._stack = ExitStack()
        static = StaticFiles(directory=HERE / "static")
        routes: list[Route | Mount] = [Mount("/static", static)]
        for view in views.VIEWS:
            routes.append(Route(view.path, self._page(view), methods=["GET"]))
            routes.append(Route(view.api_path, self._data(view), methods=["GET"]))
        routes += [Route(deed.path, self._deed(deed), methods=["POST"]) for deed in views.DEEDS]
        routes.append(Route("/live", self._told(self._live), methods=["GET"]))
        app = Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._refuse},
            lifespan=self._lifespan,
        )
        self._guard = Guard(app, auth=auth, hosts=hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._guard(scope, receive, send)

    async def __aenter__(self) -> Self:
        """Take figures while inside."""
        self.live.ended = False
        self.live.start()
        self._stack.enter_context(on_exit_signal(self.live.stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave no viewer and no bulk action behind."""
        self._stack.close()
        self.live.stop()
        await self.jobs.close()
        await self.live.close()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self:
            yield

    @staticmethod
    def path_of(scope: Scope) -> str:
        """Return the path below the place where the dashboard is mounted."""
        root: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        return path[len(root) :] if root and path.startswith(f"{root}/") else path

    async def _call(self, request: Request, view: View) -> Call:
        call = Call(request, self)
        await call.enter(view.action, whole=view.whole)
        return call

    def _page(self, view: View) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            call = await self._call(request, view)
            async with asyncio.timeout(_READ_SECONDS):
                data = await view.read(call)
            return page(call, view.template, {"data": data})

        return self._told(endpoint)

    def _data(self, view: View) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            call = await self._call(request, view)
            async with asyncio.timeout(_READ_SECONDS):
                return JSONResponse(await view.read(call))

        return self._told(endpoint)

    def _deed(self, deed: Deed) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            call = Call(request, self)
            body = await call.body()
            for action, tenant in await deed.rights(call, body):
                await call.need(action, tenant)
            response = JSONResponse(await deed.do(call, body))
            for name, value in call.cookies.items():
                response.set_cookie(
                    name,
                    value,
                    max_age=31_536_000,
                    path=request.scope.get("root_path", "") or "/",
                    secure=request.scope["scheme"] == "https",
                    httponly=True,
                    samesite="lax",
                )
            return response

        return self._told(endpoint)

    async def _live(self, request: Request) -> Response:
        return await stream.answer(await self._call(request, views.LIVE))

    def _told(self, endpoint: Endpoint) -> Endpoint:
        """Answer errors here: a server would log them with everything that they carry."""

        async def told(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Exception as error:  # noqa: BLE001  every error becomes an answer
                return await self._refuse(request, error)

        return told

    async def _refuse(self, request: Request, error: Exception) -> Response:
        status, text = _words(error)
        if status >= 500:
            _logger.error("%s: %s", self.path_of(request.scope), describe(error))
        return self._problem(request, status, text)

    def _problem(self, request: Request, status: int, text: str) -> Response:
        if self.path_of(request.scope).startswith("/api/"):
            document = {"type": "about:blank", "title": text, "status": status}
            return JSONResponse(document, status, media_type="application/problem+json")
        try:
            call = Call(request, self)
            return page(call, "problem.html", {"status": status, "text": text}, status=status)
        except Exception as error:  # noqa: BLE001  a page about an error must not be the next one
            _logger.error("the page about an error failed: %s", describe(error))
            return PlainTextResponse(text, status)


def create_dashboard(
    hub: Hub,
    *,
    auth: DashboardAuth | None = None,
    insecure_allow_anonymous: bool = False,
    hosts: Collection[str] | None = None,
    read_only: bool | None = None,
    sample_seconds: float = 5.0,
) -> Dashboard:
    """Return the dashboard of *hub*, to be mounted in any ASGI application, or served as it is.

    *auth* says who may come in and do what. Without it nothing is served, unless everybody who
    reaches the port may look (never act, and never see payloads): *insecure_allow_anonymous*.
    *hosts* are the names under which it is reached; others are refused. None allows any, but
    anonymous visitors come by localhost only.
    *read_only*, or `SEMEL_DASHBOARD_READ_ONLY=1`, takes every action away.

    Figures are taken every *sample_seconds* while somebody looks. Mounted in an application, they
    are taken from the start if the hub runs there, else from the first visit.
    """
    if auth is None:
        if not insecure_allow_anonymous:
            raise ConfigurationError(
                "the dashboard needs auth=, such as BasicAuth([...]) of semel.dashboard; "
                "insecure_allow_anonymous=True lets everybody look who can reach it"
            )
        _logger.warning(
            "the dashboard of %s lets everybody look: insecure_allow_anonymous is set", hub.name
        )
        auth, hosts = Anonymous(), LOCAL if hosts is None else hosts
    elif insecure_allow_anonymous:
        raise ConfigurationError("auth= and insecure_allow_anonymous exclude each other")
    if not sample_seconds > 0:
        raise ConfigurationError("sample_seconds must be more than 0")
    if read_only is None:
        read_only = os.environ.get("SEMEL_DASHBOARD_READ_ONLY", "").lower() in _ON
    if read_only:
        auth = ReadOnly(auth)
    dashboard = Dashboard(hub, auth=auth, hosts=hosts, sample_seconds=sample_seconds)
    hub.attach(dashboard)
    return dashboard


def _words(error: Exception) -> tuple[int, str]:
    """Return the status and the words for whoever asked; nothing of what the database said."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, SchemaError):
        return 503, str(error)
    if isinstance(error, StorageError):
        return 409, str(error)
    if isinstance(error, SemelError):
        return 400, str(error)
    if isinstance(error, DATABASE_ERRORS):
        return 503, "The database does not answer."
    return 500, "Something went wrong here; the log says what."
