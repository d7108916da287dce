"""Wiring: three services, each with its hub, in one process or in several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from examples.shop import orders, payments, stock
from examples.shop.settings import Settings
from examples.shop.tables import Base, fill_shelves
from semel import Hub, MessageEnvelope, SqlAlchemyStorage, bus_from_url
from semel.asgi import IdempotencyMiddleware
from semel.asgi.context import RequestContextMiddleware
from semel.asgi.health import health_app
from semel.asgi.http import Scope
from semel.asgi.live import LiveEvents
from semel.asgi.stream import Viewer
from semel.fastapi import describe_idempotency

PAGE = Path(__file__).parent / "page"
LISTEN = {"orders": orders.listen, "stock": stock.listen, "payments": payments.listen}
# Nothing but our own files, and nobody may put the page into a frame.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the application of the service *orders*, and run the others that are asked for."""
    settings = settings or Settings.from_env()
    storage = SqlAlchemyStorage(settings.database_url)
    hubs = {name: hub(name, settings, storage) for name in {"orders", *settings.services}}
    shop = hubs["orders"]

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await prepare(storage, shop, settings)
        async with AsyncExitStack() as stack:
            for name, each in hubs.items():
                # One projector sends the events of all: they share the outbox of one database.
                await stack.enter_async_context(
                    each.running(projector=name == "orders", consumers=name in settings.services)
                )
            yield

    app = FastAPI(title="A shop on semel", version="1.0.0", lifespan=lifespan)
    app.add_middleware(IdempotencyMiddleware, storage=storage)
    app.add_middleware(RequestContextMiddleware)
    app.include_router(orders.routes(shop, settings))
    live = LiveEvents(shop, [settings.topic("orders")], authorize=anybody)
    app.add_route("/live", live, include_in_schema=False)
    app.mount("/health", health_app(shop))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"content-security-policy": POLICY})

    describe_idempotency(app)
    app.mount("/page", StaticFiles(directory=PAGE))
    return app


def hub(name: str, settings: Settings, storage: SqlAlchemyStorage) -> Hub:
    """Return the hub of one service."""
    options = {"storage": storage} if settings.bus_url == "database://" else {}
    made = Hub(name, storage=storage, bus=bus_from_url(settings.bus_url, **options))
    LISTEN[name](made, settings)
    return made


def anybody(_scope: Scope) -> Viewer:
    """Show the orders to everybody. A real shop looks at the session, and shows its own orders."""
    return Viewer(show=_order)


def _order(message: MessageEnvelope) -> object:
    return message.payload


async def prepare(storage: SqlAlchemyStorage, shop: Hub, settings: Settings) -> None:
    """Create tables and topics; a real service finds them made when it is deployed."""
    await storage.initialize()
    async with storage.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with storage.session_factory() as session:
        await fill_shelves(session)
    declare = getattr(shop.bus, "declare", None)
    for name in LISTEN if declare is not None else ():
        await declare(settings.topic(name), partitions=3)
