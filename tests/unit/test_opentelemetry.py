"""Spans by the messaging conventions: names, kinds, links, parents, and nothing secret in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, Tracer

from semel.envelope import MessageEnvelope
from semel.metrics import ALL
from semel.observer import Operation
from semel.opentelemetry import OpenTelemetryObserver

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
def tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("the service")


@pytest.fixture
def observer(provider: TracerProvider) -> OpenTelemetryObserver:
    return OpenTelemetryObserver(tracer_provider=provider)


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def shown(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def message(event_id: str = "e-1", topic: str = "orders", **metadata: str) -> MessageEnvelope:
    return MessageEnvelope(topic=topic, payload={"a": 1}, event_id=event_id, metadata=metadata)


def test_creation(
    observer: OpenTelemetryObserver, exporter: InMemorySpanExporter, tracer: Tracer
) -> None:
    """An event carries the context of its `create` span, a child of what goes on."""
    metadata: dict[str, str] = {}
    with tracer.start_as_current_span("POST /orders"):
        observer.inject(metadata, topic="orders", event_id="e-1")
    created, request = named(exporter, "create orders"), named(exporter, "POST /orders")
    assert {"traceparent": shown(created.context)} == metadata
    assert created.parent is not None
    assert request.context.span_id == created.parent.span_id
    assert SpanKind.PRODUCER == created.kind
    assert {
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": "orders",
        "messaging.message.id": "e-1",
    } == created.attributes


def test_creation_continues_what_a_request_brought(
    observer: OpenTelemetryObserver, exporter: InMemorySpanExporter, tracer: Tracer
) -> None:
    """Without an active span the carried context is the parent; an active one is nearer."""
    carried = {"traceparent": REMOTE, "tracestate": "a=1"}
    observer.inject(carried, topic="orders")
    assert REMOTE[:35] == carried["traceparent"][:35]
    assert REMOTE != carried["traceparent"]
    assert "a=1" == carried["tracestate"]
    metadata = {"traceparent": REMOTE, "tracestate": "a=1"}
    with tracer.start_as_current_span("work"):
        observer.inject(metadata, topic="invoices")
    assert {"traceparent": shown(named(exporter, "create invoices").context)} == metadata


@pytest.mark.parametrize("hostile", ["", "00-zz-zz-01", "x" * 5000, REMOTE + "-x"])
def test_a_hostile_context_is_no_context(
    observer: OpenTelemetryObserver, exporter: InMemorySpanExporter, hostile: str
) -> None:
    with observer.observe(Operation(name="process", messages=[message(traceparent=hostile)])):
        pass
    span = named(exporter, "process orders")
    assert span.parent is None
    assert () == span.links


def test_sending(observer: OpenTelemetryObserver, exporter: InMemorySpanExporter) -> None:
    """A batch is one span of its own, linked once to each creation."""
    first, second = (dict[str, str]() for _ in range(2))
    observer.inject(first, topic="orders", event_id="e-1")
    observer.inject(second, topic="orders", event_id="e-2")
    batch = [message("e-1", **first), message("e-2", **second), message("e-3", **second)]
    labels = {"transport": "kafka"}
    with observer.observe(Operation(name="publish", messages=batch, labels=labels)):
        pass
    span = named(exporter, "send orders")
    assert SpanKind.CLIENT == span.kind
    assert span.parent is None
    assert [first["traceparent"], second["traceparent"]] == [
        shown(link.context) for link in span.links
    ]
    assert {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 3,
        "semel.outcome": "ok",
    } == span.attributes
    with observer.observe(Operation(name="publish", messages=[message(), message(topic="b")])):
        pass
    assert "messaging.destination.name" not in (named(exporter, "send").attributes or {})


def test_processing_continues_the_trace_of_the_message(
    observer: OpenTelemetryObserver, exporter: InMemorySpanExporter
) -> None:
    """A single message's span is a child of its creation, and linked to it."""
    labels = {"transport": "kafka", "consumer_name": "billing", "group": "billing-group"}
    operation = Operation(name="process", messages=[message(traceparent=REMOTE)], labels=labels)
    with observer.observe(operation):
        operation.outcome = "processed"
    span = named(exporter, "process orders")
    assert span.parent is not None
    assert REMOTE == shown(span.parent)
    assert 1 == len(span.links)
    assert SpanKind.CONSUMER == span.kind
    assert {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": "e-1",
        "messaging.consumer.group.name": "billing-group",
        "semel.consumer": "billing",
        "semel.outcome": "processed",
    } == span.attributes
    assert StatusCode.UNSET == span.status.status_code


def test_processing_that_is_only_linked(
    provider: TracerProvider,
    observer: OpenTelemetryObserver,
    exporter: InMemorySpanExporter,
    tracer: Tracer,
) -> None:
    """Batches, a span that is there already, and `link_only`: a link, but another parent."""
    one = Operation(name="process", messages=[message(traceparent=REMOTE)])
    two = Operation(name="process", messages=[message("a", traceparent=REMOTE), message("b")])
    with observer.observe(two):
        pass
    with OpenTelemetryObserver(tracer_provider=provider, link_only=True).observe(one):
        pass
    with tracer.start_as_current_span("consume"), observer.observe(one):
        pass
    batch, alone, inside, outer = exporter.get_finished_spans()
    assert batch.parent is None
    assert alone.parent is None
    assert inside.parent is not None
    assert outer.context.span_id == inside.parent.span_id
    assert [1, 1, 1] == [len(span.links) for span in (batch, alone, inside)]


def test_failures_name_their_kind_and_nothing_else(
    observer: OpenTelemetryObserver, exporter: InMemorySpanExporter
) -> None:
    """An exception's text may hold anything: only its class is told."""
    rejected = Operation(name="publish", messages=[message()])
    with observer.observe(rejected):
        rejected.outcome = "transient"
    with (
        pytest.raises(ValueError, match="CANARY"),
        observer.observe(Operation(name="process", messages=[message()])),
    ):
        raise ValueError("password=CANARY in the payload")
    send, process = exporter.get_finished_spans()
    assert ["transient", "ValueError"] == [
        (span.attributes or {})["error.type"] for span in (send, process)
    ]
    assert {StatusCode.ERROR} == {span.status.status_code for span in (send, process)}
    assert () == process.events
    assert "CANARY" not in send.to_json() + process.to_json()
    assert "error" == (process.attributes or {})["semel.outcome"]


def test_commands_are_spans(
    observer: OpenTelemetryObserver, exporter: InMemorySpanExporter
) -> None:
    with observer.observe(Operation(name="command", labels={"command": "Ship"})):
        pass
    span = named(exporter, "command Ship")
    assert {"semel.command": "Ship", "semel.outcome": "ok"} == span.attributes


def test_without_a_provider_nothing_happens() -> None:
    """The API alone, without SDK and set-up, is silent and adds no header."""
    observer = OpenTelemetryObserver()
    metadata = {"traceparent": REMOTE}
    observer.inject(metadata, topic="orders")
    with observer.observe(Operation(name="publish", messages=[message(**metadata)])):
        observer.count("outbox_wakeups_total")
    assert {"traceparent": REMOTE} == metadata


def test_metrics_are_optional_instruments() -> None:
    """All metrics of the list, named as an exporter for Prometheus would expect."""
    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader])
    observer = OpenTelemetryObserver(meter_provider=meters)
    for metric in ALL:
        labels = dict.fromkeys(metric.labels, "x")
        observer.count(metric.name, 2, **labels)
        observer.gauge(metric.name, 3, **labels)
        observer.record(metric.name, 4, 5, **labels)
    observer.count("no_such_total")
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert len(ALL) == len(found)
    assert "s" == found["outbox_publish_latency"].unit
    [published] = found["outbox_published"].data.data_points
    assert (2, {"topic": "x", "transport": "x"}) == (published.value, published.attributes)
    [latency] = found["outbox_publish_latency"].data.data_points
    assert 2 == latency.count
    meters.shutdown()
