"""`Idempotency-Key` for any ASGI application."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from semel.asgi.call import CALL, AnsweredError, IdempotentCall
from semel.asgi.http import ASGIApp, Receive, Scope, Send, route, values
from semel.asgi.policy import HEADER, IdempotencyPolicy
from semel.asgi.request import RequestBody
from semel.asgi.responder import Responder, send_answer
from semel.asgi.routes import Routes
from semel.context import requested
from semel.envelope import DEFAULT_TENANT
from semel.errors import ConfigurationError
from semel.protocols import Observer
from semel.sqlalchemy.storage import SqlAlchemyStorage

Resolver = Callable[[Scope], str | Awaitable[str | None] | None]

_NAME = HEADER.lower().encode()
_logger = logging.getLogger("semel.idempotency")


class IdempotencyMiddleware:
    """Executes a request once per key, and gives every repetition the same answer.

    Routes claim their keys themselves, after authentication: in FastAPI by a dependency
    (`semel.fastapi.idempotency_key`), elsewhere by `idempotent_call(scope).claim(...)`. The
    middleware must be there, since it holds the answer back until it is durable.

    Or the middleware claims them for *routes* (templates, or templates with their policies), for
    requests with one of *methods*. Then *principal* is needed: it tells from the scope who calls,
    and None is answered 401. *tenant* tells the tenant.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        storage: SqlAlchemyStorage,
        routes: Iterable[str] | Mapping[str, IdempotencyPolicy] = (),
        methods: Collection[str] = ("POST", "PATCH"),
        principal: Resolver | None = None,
        tenant: Resolver | None = None,
        policy: IdempotencyPolicy | None = None,
        max_request_bytes: int = 1024 * 1024,
        observer: Observer | None = None,
    ) -> None:
        self.app = app
        self._storage = storage
        self._policy = policy or IdempotencyPolicy()
        self._routes = Routes(routes, self._policy)
        self._methods = frozenset(method.upper() for method in methods)
        if self._routes and principal is None:
            raise ConfigurationError(
                "IdempotencyMiddleware(routes=...) needs principal=, a function of the scope that "
                "tells who calls: otherwise one user could get the answer of another. Where "
                "callers are not told apart, say so: principal=lambda scope: 'anybody'"
            )
        self._principal = principal
        self._tenant = tenant
        self._limit = max_request_bytes
        self._observer = observer
        self._warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or CALL in scope:
            await self.app(scope, receive, send)
            return
        body = RequestBody(receive, limit=self._limit)
        call = IdempotentCall(self._storage, scope, body, self._policy, self._observer)
        scope[CALL] = call
        try:
            await self._claim(scope, call)
        except AnsweredError:
            assert call.verdict is not None
            await send_answer(send, call.verdict)
            return
        # Without a key nothing can be claimed, and nothing need be remembered.
        keyed = bool(values(scope, _NAME))
        responder = Responder(self.app, call, send)
        with requested(lambda: None if call.held is None else call.held.key):
            await responder(scope, body.receive if keyed else receive)
        if keyed and responder.unclaimed:
            self._warn(scope)

    def _warn(self, scope: Scope) -> None:
        """Say once that somebody believes in a protection that is not there."""
        if scope["method"] in self._methods and not self._warned:
            self._warned = True
            _logger.warning(
                "a request with an Idempotency-Key reached a route that does not claim it "
                "(%s %.100r): repetitions are executed each time. Give the route "
                "idempotency_key(...), or name it in IdempotencyMiddleware(routes=...)",
                scope["method"],
                route(scope),
            )

    async def _claim(self, scope: Scope, call: IdempotentCall) -> None:
        if self._principal is None or scope["method"] not in self._methods:
            return
        found = self._routes.match(route(scope))
        if found is None:
            return
        template, policy = found
        tenant = None if self._tenant is None else await _resolved(self._tenant(scope))
        await call.claim(
            principal=await _resolved(self._principal(scope)),
            tenant_id=DEFAULT_TENANT if tenant is None else tenant,
            route=template,
            policy=policy,
        )


async def _resolved(value: str | Awaitable[str | None] | None) -> str | None:
    return await value if inspect.isawaitable(value) else value
