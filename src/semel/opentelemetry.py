"""Traces, and metrics if wanted, by OpenTelemetry.

Spans follow the semantic conventions for messaging, version 1.44 (development):

`create <topic>`    PRODUCER, where an event is added; its context is stored in the event
`send <topic>`      CLIENT, one per batch given to the broker, linked to the events' creation
`process <topic>`   CONSUMER, around a message's transaction, child of its creation and linked to
                    it; a batch, or a span that is there already, is only linked
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from semel import __version__
from semel.envelope import MessageEnvelope
from semel.errors import missing_extra
from semel.metrics import ALL, DURATIONS, Metric
from semel.observer import Operation

try:
    from opentelemetry import trace
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(missing_extra("semel.opentelemetry", "opentelemetry")) from missing

__all__ = ["OpenTelemetryObserver"]

_SCOPE = "semel"
_TRACE = ("traceparent", "tracestate")
_SYSTEM = "messaging.system"
_OPERATION = "messaging.operation.name"
_TYPE = "messaging.operation.type"
_DESTINATION = "messaging.destination.name"
_MESSAGE_ID = "messaging.message.id"
_GROUP = "messaging.consumer.group.name"
_BATCH = "messaging.batch.message_count"
_ERROR = "error.type"
_GOOD = frozenset({"ok", "processed", "duplicate"})
# Baggage is not propagated: it may hold anything.
_propagator = TraceContextTextMapPropagator()


class OpenTelemetryObserver:
    """Makes spans, which know ids and topics but no payload, no header and no error's text.

    Without *tracer_provider* the global one is used. Metrics are made only with a
    *meter_provider*; their names are those of `semel.metrics` without unit and `_total`, which an
    exporter for Prometheus puts back. With *link_only*, a message's `process` span begins a trace
    of its own.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        link_only: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        self._link_only = link_only
        self._meters = (
            None
            if meter_provider is None
            else _Instruments(meter_provider.get_meter(_SCOPE, __version__))
        )

    @contextmanager
    def observe(self, operation: Operation) -> Iterator[None]:
        """Make a span of *operation*."""
        started = perf_counter()
        try:
            with self._span(operation) as span:
                try:
                    yield
                except BaseException as error:
                    if operation.outcome == "ok":
                        operation.outcome = "error"
                    _fail(span, type(error).__qualname__)
                    raise
                finally:
                    span.set_attribute("semel.outcome", operation.outcome)
                if operation.outcome not in _GOOD:
                    _fail(span, operation.outcome)
        finally:
            metric = DURATIONS.get(operation.name)
            if metric is not None:
                labels = {**operation.labels, "outcome": operation.outcome}
                self.record(metric.name, perf_counter() - started, **labels)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        if self._meters is not None:
            self._meters.count(name, value, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        if self._meters is not None:
            self._meters.gauge(name, value, labels)

    def record(self, name: str, *values: float, **labels: str) -> None:
        """Add observations to a histogram."""
        if self._meters is not None:
            self._meters.record(name, values, labels)

    def inject(
        self, metadata: MutableMapping[str, str], *, topic: str = "", event_id: str = ""
    ) -> None:
        """Make a `create` span and put its context into *metadata*."""
        # An active span is nearer than what the request brought along.
        active = trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            f"create {topic}".strip(),
            None if active else _extract(metadata),
            SpanKind.PRODUCER,
            {_OPERATION: "create", _TYPE: "create", _DESTINATION: topic, _MESSAGE_ID: event_id},
        )
        span.end()
        if span.get_span_context().is_valid:
            for name in _TRACE:
                metadata.pop(name, None)
            _propagator.inject(metadata, trace.set_span_in_context(span))

    @contextmanager
    def _span(self, operation: Operation) -> Iterator[Span]:
        match operation.name:
            case "publish":
                name, kind = "send", SpanKind.CLIENT
            case "process":
                name, kind = "process", SpanKind.CONSUMER
            case other:
                name, kind = other, SpanKind.INTERNAL
        messages, labels = operation.messages, operation.labels
        topics = {message.topic for message in messages}
        subject = labels.get("command") or (topics.pop() if len(topics) == 1 else "")
        links = _links(messages)
        with self._tracer.start_as_current_span(
            f"{name} {subject}".strip(),
            self._parent(operation),
            kind,
            _attributes(name, subject, operation),
            links,
            # An exception's text may quote a payload or a password.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def _parent(self, operation: Operation) -> Any:
        """Continue the trace of a single message, unless somebody's span is there already."""
        if (
            operation.name != "process"
            or len(operation.messages) != 1
            or self._link_only
            or trace.get_current_span().get_span_context().is_valid
        ):
            return None
        return _extract(operation.messages[0].metadata)


class _Instruments:
    """The metrics as instruments, each made when it is first used."""

    def __init__(self, meter: Meter) -> None:
        self._metrics = {metric.name: metric for metric in ALL}
        self._meter = meter
        self._made: dict[str, Any] = {}

    def count(self, name: str, value: float, labels: dict[str, str]) -> None:
        counter: Counter | None = self._get(name, "counter")
        if counter is not None:
            counter.add(value, labels)

    def gauge(self, name: str, value: float, labels: dict[str, str]) -> None:
        gauge = self._get(name, "gauge")
        if gauge is not None:
            gauge.set(value, labels)

    def record(self, name: str, values: Sequence[float], labels: dict[str, str]) -> None:
        histogram: Histogram | None = self._get(name, "histogram")
        if histogram is not None:
            for value in values:
                histogram.record(value, labels)

    def _get(self, name: str, kind: str) -> Any:
        metric = self._metrics.get(name)
        if metric is None or metric.kind != kind:
            return None
        if name not in self._made:
            self._made[name] = self._make(metric)
        return self._made[name]

    def _make(self, metric: Metric) -> Any:
        name = metric.name.removesuffix("_total")
        unit = "s" if name.endswith("_seconds") else "1"
        name = name.removesuffix("_seconds")
        if metric.kind == "counter":
            return self._meter.create_counter(name, unit, metric.help)
        if metric.kind == "gauge":
            return self._meter.create_gauge(name, unit, metric.help)
        return self._meter.create_histogram(
            name, unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
        )


def _attributes(name: str, subject: str, operation: Operation) -> dict[str, str | int]:
    labels, messages = operation.labels, operation.messages
    if not messages:
        return {f"semel.{label}": value for label, value in labels.items()}
    attributes: dict[str, str | int] = {
        _SYSTEM: labels.get("transport", _SCOPE),
        _OPERATION: name,
        _TYPE: name,
    }
    if subject:
        attributes[_DESTINATION] = subject
    if len(messages) == 1:
        attributes[_MESSAGE_ID] = messages[0].event_id
    else:
        attributes[_BATCH] = len(messages)
    if "consumer_name" in labels:
        attributes["semel.consumer"] = labels["consumer_name"]
    if "group" in labels:
        attributes[_GROUP] = labels["group"]
    return attributes


def _extract(metadata: Mapping[str, str]) -> Any:
    return _propagator.extract({name: metadata[name] for name in _TRACE if name in metadata})


def _links(messages: Iterable[MessageEnvelope]) -> list[Link]:
    contexts: dict[tuple[int, int], SpanContext] = {}
    for message in messages:
        context = trace.get_current_span(_extract(message.metadata)).get_span_context()
        if context.is_valid:
            contexts[context.trace_id, context.span_id] = context
    return [Link(context) for context in contexts.values()]


def _fail(span: Span, kind: str) -> None:
    span.set_attribute(_ERROR, kind)
    span.set_status(Status(StatusCode.ERROR))
