"""One trace, from an HTTP request to the handlers of other services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from semel import AggregateRoot, Hub, MessageEnvelope
from semel.asgi.context import RequestContextMiddleware
from semel.opentelemetry import OpenTelemetryObserver
from semel.protocols import UnitOfWork
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports.memory import InMemoryMessageBus
from tests.scenarios.relaying import config, eventually
from tests.services import Database

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """The spans of all services, in one place as in a tracing system."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def __getitem__(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
async def spans() -> AsyncIterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


@pytest.fixture
async def services(
    sqlite: Database, postgres: Database, spans: Spans
) -> AsyncIterator[tuple[Hub, Hub]]:
    """A shop on PostgreSQL and its billing on SQLite, one broker between them."""
    bus = InMemoryMessageBus()
    hubs = []
    for name, database in (("shop", postgres), ("billing", sqlite)):
        storage = SqlAlchemyStorage(database.url)
        await storage.initialize()
        observer = OpenTelemetryObserver(tracer_provider=spans.provider)
        hubs.append(Hub(name, storage=storage, bus=bus, config=config(), observer=observer))
    yield hubs[0], hubs[1]
    for hub in hubs:
        await hub.storage.close()


def web(shop: Hub, place: Callable[[Any], Any], spans: Spans, *, traced: bool) -> Any:
    """Make a web application that places an order, instrumented as OpenTelemetry does or not."""
    tracer = spans.provider.get_tracer("web")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async with shop.unit_of_work() as uow:
            if traced:
                with tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
                    await place(uow)
                    await uow.commit()
            else:
                await place(uow)
                await uow.commit()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return RequestContextMiddleware(application)


async def post(app: Any) -> None:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        answer = await client.post("/orders", headers={"traceparent": CALLER})
    assert 201 == answer.status_code


class Order(AggregateRoot):
    """An aggregate whose event is collected at the commit."""

    topic = "orders"
    id = "o-1"


async def by_hand(uow: Any) -> None:
    await uow.outbox.add("orders", {"order_id": "o-1"}, event_type="OrderPlaced")


async def by_aggregate(uow: Any) -> None:
    order = Order()
    order.add_event({"order_id": "o-1"}, event_type="OrderPlaced")
    uow.track(order)


def listen(shop: Hub, billing: Hub) -> None:
    @billing.on("orders", "OrderPlaced")
    async def invoice(message: MessageEnvelope, uow: UnitOfWork) -> None:
        await uow.outbox.add("invoices", {"order_id": "o-1"}, event_type="InvoiceSent")

    @shop.on("invoices", "InvoiceSent")
    async def note(message: MessageEnvelope, uow: UnitOfWork) -> None: ...


@pytest.mark.parametrize("place", [by_hand, by_aggregate])
async def test_one_trace_through_two_services_and_back(
    services: tuple[Hub, Hub], spans: Spans, place: Callable[[Any], Any]
) -> None:
    """Request, creation, billing's handler, what it sends, and the shop's handler of that."""
    shop, billing = services
    listen(shop, billing)
    async with shop.running(), billing.running():
        await post(web(shop, place, spans, traced=True))
        await eventually(lambda: len(spans.named("process invoices")) == 1)
    path = ["POST /orders", "create orders", "process orders", "create invoices"]
    path.append("process invoices")
    for parent, child in pairwise(path):
        assert spans[child].parent is not None, child
        assert spans[parent].context.span_id == spans[child].parent.span_id, child
    assert 1 == len({spans[name].context.trace_id for name in path})
    for topic in ("orders", "invoices"):
        [link] = spans[f"send {topic}"].links
        assert spans[f"create {topic}"].context.span_id == link.context.span_id
        [link] = spans[f"process {topic}"].links
        assert spans[f"create {topic}"].context.span_id == link.context.span_id
    assert "billing" == (spans["process orders"].attributes or {})["messaging.consumer.group.name"]
    assert "memory" == (spans["process orders"].attributes or {})["messaging.system"]


async def test_the_callers_trace_goes_on_without_instrumentation_of_the_web(
    services: tuple[Hub, Hub], spans: Spans
) -> None:
    """The context that the request brought along is continued."""
    shop, billing = services
    listen(shop, billing)
    async with shop.running(), billing.running():
        await post(web(shop, by_hand, spans, traced=False))
        await eventually(lambda: len(spans.named("process invoices")) == 1)
    created = spans["create orders"]
    assert created.parent is not None
    assert CALLER[3:35] == f"{created.parent.trace_id:032x}"
    assert CALLER[36:52] == f"{created.parent.span_id:016x}"
    assert created.context.trace_id == spans["process invoices"].context.trace_id


async def test_a_context_that_is_given_is_left_alone(
    services: tuple[Hub, Hub], spans: Spans
) -> None:
    """What the application passes as `traceparent` is what is stored and sent."""
    shop, _ = services

    async def place(uow: Any) -> None:
        await uow.outbox.add("orders", {}, metadata={"traceparent": CALLER})

    async with shop.running():
        await post(web(shop, place, spans, traced=True))
        await shop.drain()
    assert [] == spans.named("create orders")
    [link] = spans["send orders"].links
    assert CALLER[36:52] == f"{link.context.span_id:016x}"


async def test_a_retried_message_stays_in_its_trace(
    services: tuple[Hub, Hub], spans: Spans
) -> None:
    """Each attempt is a span of the same trace; the one that failed says with what."""
    shop, billing = services
    failures = iter([True])

    @billing.on("orders", "OrderPlaced")
    async def invoice(message: MessageEnvelope, uow: UnitOfWork) -> None:
        if next(failures, False):
            raise RuntimeError("CANARY")

    async with shop.running(), billing.running():
        await post(web(shop, by_hand, spans, traced=True))
        await eventually(lambda: len(spans.named("process orders")) == 2)
    first, second = spans.named("process orders")
    assert first.parent == second.parent
    assert ["error", "processed"] == [
        (span.attributes or {})["semel.outcome"] for span in (first, second)
    ]
    assert "RuntimeError" == (first.attributes or {})["error.type"]
    assert "CANARY" not in first.to_json()
