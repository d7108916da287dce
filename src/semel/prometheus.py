"""Metrics for Prometheus."""

from __future__ import annotations

import hmac
import logging
import os
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import Any

from semel import __version__
from semel.errors import ConfigurationError, missing_extra
from semel.metrics import ALL, DURATIONS, METRICS, Metric
from semel.observer import Operation

try:
    from prometheus_client import (
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        make_asgi_app,
    )
    from prometheus_client.multiprocess import MultiProcessCollector
except ImportError as missing:
    raise ImportError(missing_extra("semel.prometheus", "prometheus")) from missing

__all__ = ["PrometheusObserver", "metrics_app"]

_OTHER = "other"
_MANY = 8
_logger = logging.getLogger("semel.metrics")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class PrometheusObserver:
    """Keeps the metrics of `semel.metrics` in *registry*, the client's global one by default.

    A label takes *max_label_values* values; whatever comes later is counted as `other`.

    >>> from prometheus_client import CollectorRegistry
    >>> observer = PrometheusObserver(CollectorRegistry())
    >>> observer.count("outbox_published_total", 3, topic="orders", transport="kafka")
    >>> observer.registry.get_sample_value(
    ...     "outbox_published_total", {"topic": "orders", "transport": "kafka"}
    ... )
    3.0
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, max_label_values: int = 100
    ) -> None:
        if max_label_values < 1:
            raise ConfigurationError("max_label_values must be at least 1")
        self.registry = REGISTRY if registry is None else registry
        self._limit = max_label_values
        self._known: dict[str, set[str]] = {}
        self._lock = Lock()
        self._gauges: dict[str, Gauge] = {}
        try:
            self._counters = {m.name: self._counter(m) for m in ALL if m.kind == "counter"}
            self._histograms = {m.name: self._histogram(m) for m in ALL if m.kind == "histogram"}
        except ValueError as error:
            raise ConfigurationError(
                "this registry has semel's metrics already: make one PrometheusObserver per "
                "process, or give each a CollectorRegistry of its own"
            ) from error
        self.gauge("semel_build_info", 1, version=__version__)

    @contextmanager
    def observe(self, operation: Operation) -> Iterator[None]:
        """Measure *operation*, if its duration is a metric."""
        metric = DURATIONS.get(operation.name)
        if metric is None:
            yield
            return
        started = perf_counter()
        try:
            yield
        except BaseException:
            operation.outcome = "error"
            raise
        finally:
            labels = {**operation.labels, "outcome": operation.outcome}
            self.record(metric.name, perf_counter() - started, **labels)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters.get(name)
        if counter is not None:
            values = self._values(METRICS[name], labels)
            (counter.labels(*values) if values else counter).inc(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. It is not exported before: a process that does not know says nothing."""
        metric = METRICS.get(name)
        if metric is not None and metric.kind == "gauge":
            gauge = self._gauges.get(name) or self._new_gauge(metric)
            values = self._values(metric, labels)
            (gauge.labels(*values) if values else gauge).set(value)

    def record(self, name: str, *values: float, **labels: str) -> None:
        """Add observations to a histogram."""
        histogram = self._histograms.get(name)
        if histogram is not None:
            found = self._values(METRICS[name], labels)
            child = histogram.labels(*found) if found else histogram
            _observe(child, values)

    def inject(
        self, metadata: MutableMapping[str, str], *, topic: str = "", event_id: str = ""
    ) -> None:
        """Add nothing: metrics have no context."""

    def _values(self, metric: Metric, labels: dict[str, str]) -> list[str]:
        return [self._bounded(label, labels.get(label, "")) for label in metric.labels]

    def _bounded(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value in known:
            return value
        if len(known) >= self._limit:
            return _OTHER
        known.add(value)
        return value

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            metric.name,
            metric.help,
            metric.labels,
            buckets=metric.buckets,
            registry=self.registry,
        )

    def _new_gauge(self, metric: Metric) -> Gauge:
        with self._lock:
            if metric.name not in self._gauges:
                gauge = Gauge(
                    metric.name,
                    metric.help,
                    metric.labels,
                    registry=None,
                    # A process that is gone must not speak for the others.
                    multiprocess_mode=f"live{metric.across}",  # type: ignore[arg-type]
                )
                try:
                    self.registry.register(gauge)
                except ValueError:
                    _logger.error("another metric is called %s: ours is not shown", metric.name)
                self._gauges[metric.name] = gauge
            return self._gauges[metric.name]


def _observe(child: Histogram, values: Sequence[float]) -> None:
    """Observe many values with one increment per bucket, as far as the client has what we know.

    Its own way takes microseconds for each value, which a busy relay would feel.
    """
    parts = vars(child)
    if len(values) < _MANY or not parts.keys() >= {"_sum", "_buckets", "_upper_bounds"}:
        for value in values:
            child.observe(value)
        return
    bounds, buckets = parts["_upper_bounds"], parts["_buckets"]
    for index, number in Counts(bisect_left(bounds, value) for value in values).items():
        buckets[index].inc(number)
    parts["_sum"].inc(sum(values))


def metrics_app(
    source: PrometheusObserver | CollectorRegistry | None = None, *, token: str | None = None
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an ASGI application that answers a scrape; mount it, or serve it on its own port.

    With *token*, only requests with `Authorization: Bearer <token>` are answered. No database is
    asked. Where the client works for several processes (`PROMETHEUS_MULTIPROC_DIR`), the answer
    is about all of them.
    """
    if token is not None and not token:
        raise ConfigurationError("the token of metrics_app must not be empty")
    registry = source.registry if isinstance(source, PrometheusObserver) else source

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and token is not None and not _knows(scope, token):
            await _refuse(send)
            return
        await make_asgi_app(_collected(registry))(scope, receive, send)

    return app


def _collected(registry: CollectorRegistry | None) -> CollectorRegistry:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY if registry is None else registry
    everybody = CollectorRegistry()
    MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
    return everybody


def _knows(scope: Scope, token: str) -> bool:
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    return len(given) == 1 and hmac.compare_digest(given[0], b"Bearer " + token.encode())


async def _refuse(send: Send) -> None:
    headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
