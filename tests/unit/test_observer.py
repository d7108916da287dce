"""The contract of observers, for each of ours."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from semel.observer import CombinedObserver, LoggingObserver, NullObserver
from semel.opentelemetry import OpenTelemetryObserver
from semel.prometheus import PrometheusObserver
from semel.protocols import Observer
from semel.testing.contracts.observer import ObserverContract


class TestNull(ObserverContract):
    @pytest.fixture
    def observer(self) -> Observer:
        return NullObserver()


class TestLogging(ObserverContract):
    @pytest.fixture
    def observer(self) -> Observer:
        return LoggingObserver()


class TestPrometheus(ObserverContract):
    @pytest.fixture
    def observer(self) -> Observer:
        return PrometheusObserver(CollectorRegistry())


class TestOpenTelemetry(ObserverContract):
    @pytest.fixture
    def observer(self) -> Observer:
        return OpenTelemetryObserver()


class TestCombined(ObserverContract):
    @pytest.fixture
    def observer(self) -> Observer:
        return CombinedObserver(
            NullObserver(),
            PrometheusObserver(CollectorRegistry()),
            OpenTelemetryObserver(tracer_provider=TracerProvider(), meter_provider=MeterProvider()),
        )
