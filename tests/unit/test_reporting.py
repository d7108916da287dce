"""What a projector tells others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from semel.breaker import Breaker
from semel.reporting import Report
from semel.testing import FakeClock


def _report(clock: FakeClock) -> tuple[Report, Any]:
    broker = Breaker("the broker")
    destinations = SimpleNamespace(broker=broker, in_trouble=[])
    publisher: Any = SimpleNamespace(destinations=destinations, published=0, failed=0)
    tenure: Any = SimpleNamespace(waiting_for="a free partition")
    return Report(publisher, tenure, clock), publisher


def test_the_rate_is_that_since_the_last_report():
    clock = FakeClock()
    report, publisher = _report(clock)
    clock.advance(2.0)
    publisher.published = 30
    first = report()
    clock.advance(4.0)
    publisher.published = 40
    second = report()
    assert (15.0, 2.5) == (first["published_per_second"], second["published_per_second"])
    assert (40, "a free partition") == (second["published"], second["waiting_for"])
    assert 0.0 == report()["published_per_second"]


def test_breakers_say_since_when_and_why():
    clock = FakeClock()
    report, publisher = _report(clock)
    broker = publisher.destinations.broker
    opened = clock.now()
    broker.trip(clock.monotonic(), "refused")
    topic = Breaker("orders")
    clock.advance(60.0)
    topic.trip(clock.monotonic(), "no such topic")
    publisher.destinations.in_trouble = [broker, topic]
    [first, second] = report()["breakers"]
    assert {
        "topic": None,
        "since": opened.isoformat(timespec="seconds"),
        "trips": 1,
        "error": "refused",
    } == first
    assert ("orders", clock.now().isoformat(timespec="seconds")) == (
        second["topic"],
        second["since"],
    )


def test_a_report_stays_small():
    """However many topics are in trouble, and whatever they say."""
    clock = FakeClock()
    report, publisher = _report(clock)
    topics = [Breaker("t" * 255) for _ in range(1000)]
    for topic in topics:
        topic.trip(clock.monotonic(), "x" * 5000)
    publisher.destinations.in_trouble = topics
    assert 16_384 > len(json.dumps(report()))
