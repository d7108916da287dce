"""A destination in trouble is left alone for a while that grows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from semel.breaker import Breaker
from semel.destinations import Destinations
from semel.envelope import MessageEnvelope
from semel.errors import PublishError
from semel.observer import NullObserver
from semel.relay import Entry
from semel.settings import OutboxProjectorConfig
from semel.states import Pause
from semel.testing.clock import FakeClock
from semel.window import Window


def test_it_is_closed_until_there_is_trouble():
    breaker = Breaker("the broker")
    assert breaker.is_closed
    assert not breaker.is_open(0.0)
    assert 0.0 == breaker.open_seconds(5.0)


def test_it_opens_for_a_pause_and_is_half_open_after_it():
    breaker = Breaker("the broker", base_seconds=2.0)
    breaker.trip(10.0, "refused")
    assert breaker.is_open(10.9)
    assert not breaker.is_open(12.0), "half-open: a probe may pass"
    assert not breaker.is_closed
    assert 2.0 == breaker.open_seconds(12.0)
    assert "refused" == breaker.error


def test_the_pause_doubles_up_to_its_cap_and_never_vanishes():
    """R16: jitter takes at most the half."""
    breaker = Breaker("the broker", base_seconds=1.0, max_seconds=8.0)
    pauses = []
    for _ in range(100):
        breaker.trip(0.0, "refused")
        pauses.append(breaker.retry_at)
    for pause, ceiling in zip(pauses, [1, 2, 4, 8, 8, 8], strict=False):
        assert ceiling / 2 <= pause <= ceiling
    assert max(pauses) <= 8.0
    assert 0.0 == breaker.opened_at, "the trouble began with the first trip"


def test_closing_forgets_everything():
    breaker = Breaker("the broker", base_seconds=1.0)
    for _ in range(5):
        breaker.trip(0.0, "refused")
    breaker.alerted = True
    breaker.close()
    assert Breaker("the broker", base_seconds=1.0) == breaker


class Gauges(NullObserver):
    def __init__(self) -> None:
        self.open: dict[str, float] = {}
        self.alerts: list[str] = []

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.open[labels["destination"]] = value

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.alerts.append(labels["destination"])


class World:
    """Destinations over a window with one event in flight."""

    def __init__(self) -> None:
        self.clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
        self.observer = Gauges()
        self.window = Window(100)
        self.window.lanes.add(0, 1)
        self.window.lanes[0].surveyed = True
        envelope = MessageEnvelope(topic="orders", payload=1, key="k")
        self.entry = Entry(1, 0, "NEW", 0, None, ("default", "k"), envelope)
        self.window.feed(self.window.reads(everything=True), [self.entry], 0.0)
        self.batch = self.window.take(10, 0.0)
        self.destinations = Destinations(
            self.window,
            config=OutboxProjectorConfig(breaker_alert_seconds=60),
            clock=self.clock,
            observer=self.observer,
        )


@pytest.fixture
def world() -> World:
    return World()


def test_batches_that_fail_together_trip_once(world: World):
    for _ in range(4):
        world.destinations.trip(PublishError("refused"))
    assert 1 == world.destinations.broker.trips
    assert not world.destinations.accept
    assert {"the broker": 1} == world.observer.open
    world.clock.advance(1.0)
    assert world.destinations.accept
    world.destinations.recover()
    assert {"the broker": 0} == world.observer.open


def test_a_topic_in_trouble_is_held_and_its_event_kept_for_the_probe(world: World):
    world.destinations.trip_topic(world.batch, PublishError("missing"))
    assert {"orders"} == world.window.holds.topics
    assert world.destinations.accept, "other topics go on"
    assert [] == world.destinations.due_topics(world.clock.monotonic())
    assert world.destinations.resume_at == world.destinations.topics["orders"].retry_at
    world.clock.advance(1.0)
    [(topic, breaker)] = world.destinations.due_topics(world.clock.monotonic())
    assert ("orders", world.entry) == (topic, breaker.probe)
    world.destinations.recover_topic("orders")
    assert set() == world.window.holds.topics
    assert {"orders": 0} == world.observer.open


def test_a_paused_topic_is_not_probed(world: World):
    world.destinations.trip_topic(world.batch, PublishError("missing"))
    world.destinations.apply_pauses([Pause(topic="orders")])
    world.clock.advance(60.0)
    assert [] == world.destinations.due_topics(world.clock.monotonic())
    world.destinations.apply_pauses([])
    assert 1 == len(world.destinations.due_topics(world.clock.monotonic()))


@pytest.mark.parametrize("why", ["left", "lost", "tenant paused"])
def test_a_probe_that_is_not_ours_to_send_is_dropped(world: World, why: str):
    world.destinations.trip_topic(world.batch, PublishError("missing"))
    if why == "left":
        world.window.leave([0])
    elif why == "lost":
        world.window.drop_lanes([0])
    else:
        world.destinations.apply_pauses([Pause(tenant_id="default")])
    assert [] == world.destinations.due_topics(world.clock.monotonic())
    assert world.destinations.topics["orders"].probe is None
    if why == "left":
        assert [0] == world.window.lanes.left(), "the hand-over does not wait for it"


def test_pauses(world: World):
    world.destinations.apply_pauses([Pause(topic="a"), Pause(tenant_id="t")])
    assert ({"a"}, {"t"}) == (world.window.holds.topics, world.window.holds.tenants)
    assert world.destinations.accept
    world.destinations.apply_pauses([Pause()])
    assert not world.destinations.accept
    assert set() == world.window.holds.topics


def test_it_alerts_once_for_each_trouble(world: World):
    world.destinations.trip(PublishError("refused"))
    world.destinations.trip_topic(world.batch, PublishError("missing"))
    world.destinations.alert(world.clock.monotonic())
    assert [] == world.observer.alerts
    world.clock.advance(61.0)
    for _ in range(3):
        world.destinations.alert(world.clock.monotonic())
    assert ["the broker", "orders"] == world.observer.alerts


def test_it_remembers_what_passed(world: World):
    assert not world.destinations.has_passed_since("orders", 0.0)
    world.clock.advance(1.0)
    world.destinations.passed(world.batch)
    assert world.destinations.has_passed_since("orders", 0.5)
    assert not world.destinations.has_passed_since("orders", 1.0)
    assert not world.destinations.has_passed_since("invoices", 0.5)
