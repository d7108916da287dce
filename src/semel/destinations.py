"""Where events may go now: what operators paused, and which destinations are in trouble."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from semel.breaker import Breaker
from semel.errors import describe
from semel.protocols import Clock, Observer
from semel.relay import Entry
from semel.settings import OutboxProjectorConfig
from semel.states import Pause
from semel.window import Window

_logger = logging.getLogger("semel.projector")


class Destinations:
    """A breaker for the broker and one for each topic in trouble; tells the window what waits."""

    def __init__(
        self, window: Window, *, config: OutboxProjectorConfig, clock: Clock, observer: Observer
    ) -> None:
        self._window = window
        self._config = config
        self._clock = clock
        self._observer = observer
        self._paused_topics: frozenset[str] = frozenset()
        self._passed_at: dict[str, float] = {}
        self.broker = Breaker("the broker", max_seconds=config.breaker_max_seconds)
        self.topics: dict[str, Breaker] = {}
        self.is_paused = False

    @property
    def accept(self) -> bool:
        """Whether anything may be sent at all."""
        return not self.is_paused and not self.broker.is_open(self._clock.monotonic())

    @property
    def in_trouble(self) -> Sequence[Breaker]:
        """The breakers that are not closed."""
        return [b for b in (self.broker, *self.topics.values()) if not b.is_closed]

    @property
    def resume_at(self) -> float | None:
        """When a breaker lets something through again."""
        now = self._clock.monotonic()
        return min((b.retry_at for b in self.in_trouble if b.is_open(now)), default=None)

    def apply_pauses(self, pauses: Sequence[Pause]) -> None:
        """Hold back what operators have paused."""
        self.is_paused = any(p.topic is None and p.tenant_id is None for p in pauses)
        self._paused_topics = frozenset(p.topic for p in pauses if p.topic is not None)
        self._window.holds.tenants = frozenset(
            p.tenant_id for p in pauses if p.tenant_id is not None
        )
        self._hold()

    def _hold(self) -> None:
        self._window.holds.topics = self._paused_topics | frozenset(self.topics)

    def passed(self, entries: Iterable[Entry]) -> None:
        """The broker confirmed these."""
        now = self._clock.monotonic()
        for topic in {entry.envelope.topic for entry in entries}:
            self._passed_at[topic] = now

    def has_passed_since(self, topic: str, moment: float) -> bool:
        """Tell whether events of *topic* went through after *moment*."""
        return self._passed_at.get(topic, moment) > moment

    def trip(self, error: BaseException) -> None:
        """Leave the broker alone; batches that fail at the same time count once."""
        now = self._clock.monotonic()
        if self.broker.is_closed:
            _logger.warning("the broker is in trouble, events wait: %s", describe(error))
        if not self.broker.is_open(now):
            self.broker.trip(now, describe(error))
        self._show(self.broker, 1)

    def recover(self) -> None:
        """The broker takes events again."""
        _logger.info("the broker accepts events again")
        self.broker.close()
        self._show(self.broker, 0)

    def trip_topic(self, group: Sequence[Entry], error: BaseException) -> None:
        """Leave a topic alone; the first of *group* is the one to try again."""
        topic = group[0].envelope.topic
        if topic in self.topics:
            self._window.give_back(group)
            return
        _logger.warning(
            "topic %s is in trouble, its events wait: %s",
            topic,
            describe(error),
            extra={"topic": topic},
        )
        breaker = Breaker(topic, max_seconds=self._config.breaker_max_seconds)
        breaker.trip(self._clock.monotonic(), describe(error))
        breaker.probe = self._window.retain(group)
        self.topics[topic] = breaker
        self._hold()
        self._show(breaker, 1)

    def recover_topic(self, topic: str) -> None:
        """Let events of a topic go out again."""
        _logger.info("topic %s is tried again", topic, extra={"topic": topic})
        breaker = self.topics.pop(topic)
        self._hold()
        self._show(breaker, 0)

    def due_topics(self, now: float) -> list[tuple[str, Breaker]]:
        """Return the topics to probe; a probe that is not ours to send any more is dropped."""
        due = []
        for topic, breaker in self.topics.items():
            if breaker.probing:
                continue
            if breaker.probe is not None and not self._may_send(breaker.probe):
                self._window.give_back([breaker.probe])
                breaker.probe = None
            if not breaker.is_open(now) and topic not in self._paused_topics:
                due.append((topic, breaker))
        return due

    def _may_send(self, entry: Entry) -> bool:
        lanes = self._window.lanes
        return (
            lanes.knows(entry)
            and not lanes[entry.partition].leaving
            and entry.envelope.tenant_id not in self._window.holds.tenants
        )

    def _show(self, breaker: Breaker, value: int) -> None:
        self._observer.gauge("outbox_circuit_open", value, destination=breaker.name)

    def leave(self) -> None:
        """Show no trouble any more: nobody here would see its end."""
        for breaker in self.in_trouble:
            self._show(breaker, 0)

    def alert(self, now: float) -> None:
        """Say it loudly, once, when trouble lasts."""
        for breaker in self.in_trouble:
            seconds = breaker.open_seconds(now)
            if seconds > self._config.breaker_alert_seconds and not breaker.alerted:
                breaker.alerted = True
                self._observer.count("outbox_circuit_alerts_total", destination=breaker.name)
                _logger.error(
                    "%s has been in trouble for %d seconds, no event is lost but none goes out: %s",
                    breaker.name,
                    seconds,
                    breaker.error,
                )
