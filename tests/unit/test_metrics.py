"""The list of metrics and the code that reports them say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import semel
from semel.metrics import ALL, DURATIONS, METRICS
from semel.observer import system_of

SOURCE = Path(semel.__file__).parent
# Not the contracts, which say wrong things on purpose.
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if "testing" not in path.parts]
_PREFIX = re.compile(r"(outbox|consumer|idempotency|command|cleanup|semel)_[a-z_]+\Z")
_KINDS = {"count": "counter", "gauge": "gauge", "record": "histogram"}


def reports() -> Iterator[tuple[str, str, str, set[str] | None]]:
    """Where the observer is told something: the place, how, the metric, its labels if literal."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            how = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = getattr(node.args[0], "value", None)
            if how in _KINDS and isinstance(name, str) and _PREFIX.match(name):
                labels = {keyword.arg for keyword in node.keywords}
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                yield place, how, name, None if None in labels else labels  # type: ignore[misc]


REPORTS = list(reports())


@pytest.mark.parametrize(
    ("module", "name", "system"),
    [
        ("memory", "InMemoryMessageBus", "memory"),
        ("database", "DatabaseMessageBus", "database"),
        ("kafka", "KafkaMessageBus", "kafka"),
        ("rabbitmq", "RabbitMQMessageBus", "rabbitmq"),
        ("pulsar", "PulsarMessageBus", "pulsar"),
        ("nats", "NatsMessageBus", "nats"),
        ("redis", "RedisMessageBus", "redis"),
    ],
)
def test_every_bus_has_a_name(module: str, name: str, system: str) -> None:
    """That of the conventions where they have one; a bus of somebody else's is called its class."""
    assert system == system_of(getattr(import_module(f"semel.transports.{module}"), name))
    assert "object" == system_of(object())


def test_there_are_reports() -> None:
    """The search below finds what it should."""
    assert len(REPORTS) >= 20


@pytest.mark.parametrize(
    ("place", "how", "name", "labels"), REPORTS, ids=[f"{each[2]}@{each[0]}" for each in REPORTS]
)
def test_what_is_reported_is_listed(
    place: str, how: str, name: str, labels: set[str] | None
) -> None:
    """Name, kind and labels of each report are those of the list."""
    assert name in METRICS, place
    metric = METRICS[name]
    assert _KINDS[how] == metric.kind, place
    if labels is not None:
        assert set(metric.labels) == labels, place


def test_what_is_listed_is_reported() -> None:
    """No metric is only promised."""
    code = "\n".join(path.read_text() for path in FILES if path.name != "metrics.py")
    measured = {metric.name for metric in DURATIONS.values()}

    assert [] == [m.name for m in ALL if m.name not in measured and f'"{m.name}"' not in code]


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, durations in _seconds, and no label could hold an id."""
    assert len(METRICS) == len(ALL)
    for metric in ALL:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")
            assert sorted(metric.buckets) == list(metric.buckets)
        assert not set(metric.labels) & {"event_id", "message_id", "key", "tenant", "tenant_id"}


def test_the_threshold_of_the_latency_alert_is_a_bucket() -> None:
    assert 5.0 in METRICS["outbox_publish_latency_seconds"].buckets
