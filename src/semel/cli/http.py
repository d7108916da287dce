"""What a worker answers to probes and to Prometheus."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, missing_extra

if TYPE_CHECKING:
    from semel.hub import Hub
    from semel.protocols import Observer

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]

HELP = "Answer /livez, /readyz and /metrics at this HOST:PORT."
_FAREWELL_SECONDS = 1


async def work(hub: Hub, http: str | None, *, projector: bool, consumers: bool) -> None:
    """Run the hub until a signal, and answer at *http* meanwhile."""
    async with serving(hub, http):
        await hub.run_forever(projector=projector, consumers=consumers)


@asynccontextmanager
async def serving(hub: Hub, http: str | None) -> AsyncIterator[int | None]:
    """Answer while inside, and tell on which port."""
    if http is None:
        yield None
        return
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise ConfigurationError(missing_extra("--http", "dashboard")) from error

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the hub ends on signals, and we after it

    listener = listen(http)
    config = uvicorn.Config(
        _app(hub),
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_FAREWELL_SECONDS,
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def listen(http: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT."""
    host, colon, port = http.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ConfigurationError(f"--http takes HOST:PORT, such as 127.0.0.1:8080, not {http!r}")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {http}: {error}") from None


def _app(hub: Hub) -> App:
    from semel.asgi.health import health_app

    health, metrics = health_app(hub), _metrics(hub)

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if metrics is not None and scope.get("path") in ("/metrics", "/metrics/"):
            await metrics(scope, receive, send)
        else:
            await health(scope, receive, send)

    return app


def new_observer() -> Observer | None:
    """Return one that counts for Prometheus, if its client is installed."""
    try:
        from semel.prometheus import PrometheusObserver
    except ImportError:
        return None
    return PrometheusObserver()


def _metrics(hub: Hub) -> App | None:
    try:
        from semel.prometheus import PrometheusObserver, metrics_app
    except ImportError:
        return None  # the hub cannot have one either
    for observer in getattr(hub.observer, "observers", (hub.observer,)):
        if isinstance(observer, PrometheusObserver):
            return metrics_app(observer, token=os.environ.get("SEMEL_METRICS_TOKEN") or None)
    return None
