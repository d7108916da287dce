"""Give batches to the broker, and deal with each event's outcome."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from semel.breaker import Breaker
from semel.errors import PublishError, describe, redact
from semel.observer import NullObserver, Operation
from semel.protocols import Clock, MessageBus, Observer
from semel.relay import Entry, Failure, Key, RelayStore
from semel.settings import OutboxProjectorConfig
from semel.states import OutboxStatus, Pause
from semel.tenure import Tenure
from semel.window import Window

_VISIBLE_SECONDS = 1.0
_SAMPLE = 10
_logger = logging.getLogger("semel.projector")


class Publisher:
    """Publishes the window's rows and writes down what became of them.

    A rejection counts against the event. Trouble with the destination counts against nobody: it
    opens a breaker, and afterwards, if a batch fails again although the broker answers, events go
    out one at a time, so that one that fails alone while others pass is found.
    """

    def __init__(
        self,
        bus: MessageBus,
        store: RelayStore,
        window: Window,
        tenure: Tenure,
        *,
        config: OutboxProjectorConfig,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._bus = bus
        self._store = store
        self._window = window
        self._tenure = tenure
        self._config = config
        self._clock = clock
        self._observer = observer
        self._measures = not isinstance(observer, NullObserver)
        self._breaker = Breaker("the broker", max_seconds=config.breaker_max_seconds)
        self._topics: dict[str, Breaker] = {}
        self._paused_topics: frozenset[str] = frozenset()
        self._sent: list[Entry] = []
        self._flights = 0
        self._alerted = False
        self.is_paused = False
        self.published = 0

    @property
    def unacknowledged(self) -> bool:
        """Whether confirmed events are not marked in the table yet."""
        return bool(self._sent)

    @property
    def wants_more(self) -> bool:
        """Whether reading further makes sense now."""
        return not self.is_paused and not self._breaker.is_open(self._clock.monotonic())

    @property
    def resume_at(self) -> float | None:
        """When a breaker lets something through again."""
        now = self._clock.monotonic()
        moments = [b.retry_at for b in self.breakers if b.is_open(now)]
        return min(moments, default=None)

    @property
    def has_slot(self) -> bool:
        """Whether another batch could be sent."""
        return self.wants_more and self._flights < self._config.concurrency

    @property
    def breakers(self) -> Sequence[Breaker]:
        """The destinations in trouble."""
        return [b for b in (self._breaker, *self._topics.values()) if not b.is_closed]

    def apply_pauses(self, pauses: Sequence[Pause]) -> None:
        """Hold back what operators have paused."""
        self.is_paused = any(p.topic is None and p.tenant_id is None for p in pauses)
        self._paused_topics = frozenset(p.topic for p in pauses if p.topic is not None)
        self._window.held_tenants = frozenset(
            p.tenant_id for p in pauses if p.tenant_id is not None
        )
        self._hold_topics()

    def _hold_topics(self) -> None:
        self._window.held_topics = self._paused_topics | frozenset(self._topics)

    def next_batches(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what to run now: batches, or a probe after trouble."""
        now = self._clock.monotonic()
        self._alert(now)
        if self.is_paused or self._breaker.is_open(now):
            return
        if not self._breaker.is_closed:
            if self._flights == 0 and self._window.could_take(now):
                self._flights += 1
                yield self._probe()
            return
        for topic, breaker in self._topics.items():
            if not breaker.is_open(now) and not breaker.probing:
                breaker.probing = True
                yield self._probe_topic(topic, breaker)
        while self._flights < self._config.concurrency:
            batch = self._window.take(self._config.batch_size, now)
            if not batch:
                return
            self._flights += 1
            yield self._publish(batch)

    async def _probe_topic(self, topic: str, breaker: Breaker) -> None:
        """Try the event again that showed the trouble; the others of its topic stay parked."""
        entry: Entry = breaker.probe
        breaker.probing = False
        if entry.partition in self._window.lanes and topic not in self._paused_topics:
            try:
                result = (await self._send([entry]))[0]
            except _DestinationError as error:
                breaker.trip(self._clock.monotonic(), describe(error.cause))
                return
            if result is None:
                self._confirm([entry])
            elif result.kind in ("destination", "unknown"):
                breaker.trip(self._clock.monotonic(), describe(result))
                return
        _logger.info("topic %s is tried again", topic)
        self._topics.pop(topic, None)
        self._hold_topics()
        self._tenure.changed = True

    async def _probe(self) -> None:
        """Ask whether the broker answers; then try a batch or, if that failed before, singles."""
        try:
            async with asyncio.timeout(self._config.publish_timeout_seconds):
                await self._bus.ping()
        except Exception as error:  # noqa: BLE001  whatever it is, the destination is in trouble
            self._flights -= 1
            self._trip(error)
            return
        now = self._clock.monotonic()
        if self._breaker.trips < 2:
            batch = self._window.take(self._config.batch_size, now)
            if batch:
                await self._publish(batch)
            else:
                self._flights -= 1
        else:
            try:
                await self._publish_singly(self._window.sample(_SAMPLE, now))
            finally:
                self._flights -= 1

    async def _publish(self, batch: list[Entry]) -> None:
        try:
            await self._prepare(batch)
            results = await self._send(batch)
        except BaseException as error:
            self._window.give_back(batch)
            self._flights -= 1
            if isinstance(error, _DestinationError):
                self._trip(error.cause)
            elif not isinstance(error, _LeaseExpiredError):
                raise
            return
        self._flights -= 1
        if not any(results):
            self._window.land(batch)
            self._confirm(batch)
            return
        await self._sort_out(batch, results)

    async def _prepare(self, batch: list[Entry]) -> None:
        """Make attempts visible that must survive a crash."""
        marked = []
        for entry in batch:
            lane = self._window.lanes.get(entry.partition)
            suspect = lane is not None and lane.suspects > 0
            if lane is not None and suspect:
                lane.suspects -= 1
            if entry.status == OutboxStatus.PUBLISHING:
                await self._store.begin(self._tenure.instance, [entry], count=True)
            elif suspect or entry.attempts:
                marked.append(entry)
        if marked:
            await self._store.begin(self._tenure.instance, marked)

    async def _send(self, batch: Sequence[Entry]) -> Sequence[PublishError | None]:
        if not self._tenure.is_valid():
            raise _LeaseExpiredError
        messages = [entry.envelope for entry in batch]
        marker = asyncio.get_running_loop().call_later(_VISIBLE_SECONDS, self._show, batch)
        operation = Operation(name="publish", messages=messages)
        try:
            with self._observer.observe(operation):
                async with asyncio.timeout(self._config.publish_timeout_seconds):
                    results = await self._bus.publish_many(messages)
        except Exception as error:
            raise _DestinationError(error) from error
        finally:
            marker.cancel()
        if len(results) != len(batch):
            raise _DestinationError(
                RuntimeError(
                    f"publish_many returned {len(results)} results for {len(batch)} messages"
                )
            )
        return results

    def _show(self, batch: Sequence[Entry]) -> None:
        fresh = [entry for entry in batch if entry.status == OutboxStatus.NEW]
        if fresh:
            task = asyncio.ensure_future(self._store.begin(self._tenure.instance, fresh))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _confirm(self, entries: Sequence[Entry]) -> None:
        self._sent.extend(entries)
        self.published += len(entries)
        if not self._breaker.is_closed:
            _logger.info("the broker accepts events again")
            self._breaker.close()
            self._alerted = False
        if self._measures:
            self._measure(entries)

    def _measure(self, entries: Sequence[Entry]) -> None:
        now = self._clock.now()
        for topic, number in Counter(entry.envelope.topic for entry in entries).items():
            self._observer.count("outbox_published_total", number, topic=topic)
        for entry in entries:
            if entry.created_at is not None:
                latency = max(0.0, (now - entry.created_at).total_seconds())
                self._observer.record(
                    "outbox_publish_latency_seconds", latency, topic=entry.envelope.topic
                )

    async def acknowledge(self) -> None:
        """Mark all confirmed events in the table with one statement."""
        sent, self._sent = self._sent, []
        if not sent:
            return
        try:
            await self._store.acknowledge(
                [entry.sequence for entry in sent], keep=self._config.keep_sent
            )
        except BaseException:
            self._sent = sent + self._sent
            raise
        for entry in sent:
            self._window.settle(entry)

    async def _sort_out(
        self, batch: Sequence[Entry], results: Sequence[PublishError | None]
    ) -> None:
        """Confirm, charge, delay; per key only the first event that failed is to blame."""
        confirmed: list[Entry] = []
        groups: dict[Key | int, list[tuple[Entry, PublishError]]] = {}
        for entry, result in zip(batch, results, strict=True):
            if result is None:
                confirmed.append(entry)
            else:
                groups.setdefault(entry.key or entry.sequence, []).append((entry, result))
        failing = set(groups)
        landed = [entry for entry in confirmed if (entry.key or entry.sequence) not in failing]
        self._window.land(landed)
        self._window.in_flight -= len(confirmed) - len(landed)
        if confirmed:
            self._confirm(confirmed)
        charged: list[list[Entry]] = []
        errors: list[PublishError] = []
        troubled: list[tuple[Entry, PublishError]] = []
        for group in groups.values():
            error = group[0][1]
            if error.kind in ("destination", "unknown"):
                troubled.extend(group)
            else:
                charged.append([entry for entry, _ in group])
                errors.append(error)
        if troubled:
            self._window.give_back([entry for entry, _ in troubled])
            self._blame_destination(troubled, confirmed)
        if charged:
            await self._charge(charged, errors)

    def _blame_destination(
        self, troubled: Sequence[tuple[Entry, PublishError]], confirmed: Sequence[Entry]
    ) -> None:
        passed = {entry.envelope.topic for entry in confirmed}
        for entry, error in {e.envelope.topic: (e, error) for e, error in reversed(troubled)}.values():
            topic = entry.envelope.topic
            if confirmed and topic not in passed and error.kind == "destination":
                self._trip_topic(topic, error, entry)
            else:
                self._trip(error)

    async def _publish_singly(self, entries: Sequence[Entry]) -> None:
        """Find out whether the destination or single events are to blame."""
        passed: list[Entry] = []
        failed: list[tuple[Entry, PublishError]] = []
        waiting = list(entries)
        try:
            while waiting:
                entry = waiting[0]
                try:
                    await self._prepare([entry])
                    result = (await self._send([entry]))[0]
                except _DestinationError as error:
                    result = PublishError(describe(error.cause), kind="destination")
                except _LeaseExpiredError:
                    return
                waiting.pop(0)
                if result is None:
                    passed.append(entry)
                    self._window.land([entry])
                    self._confirm([entry])
                else:
                    failed.append((entry, result))
        finally:
            self._window.give_back(waiting)
        topics = {entry.envelope.topic for entry in passed}
        charged: list[list[Entry]] = []
        errors: list[PublishError] = []
        for entry, error in failed:
            topic = entry.envelope.topic
            if error.kind in ("permanent", "transient") or topic in topics:
                charged.append([entry])
                errors.append(error)
            else:
                self._window.give_back([entry])
                if passed or self._is_only_topic(topic, failed):
                    self._trip_topic(topic, error, entry)
        if charged:
            await self._charge(charged, errors)
        if failed and not passed and not charged and not self._topics:
            self._trip(failed[0][1])

    def _is_only_topic(self, topic: str, failed: Sequence[tuple[Entry, PublishError]]) -> bool:
        """One topic may be held on suspicion; a second one means that the broker is in trouble."""
        return not self._topics and {entry.envelope.topic for entry, _ in failed} == {topic}

    async def _charge(
        self, groups: Sequence[Sequence[Entry]], errors: Sequence[PublishError]
    ) -> None:
        """Count an attempt against the first of each group, durably, before its key goes on."""
        failures = [
            self._failure(group[0], error) for group, error in zip(groups, errors, strict=True)
        ]
        try:
            written = await self._store.fail(
                self._tenure.instance, self._tenure.epochs(), failures
            )
        except BaseException:
            for group in groups:
                self._window.give_back(group)
            raise
        now = self._clock.monotonic()
        for group, failure in zip(groups, failures, strict=True):
            self._after_failure(group, failure, now, stored=group[0].sequence in written)

    def _failure(self, entry: Entry, error: PublishError) -> Failure:
        topic = entry.envelope.topic
        policy = self._config.retry_for(topic)
        attempts = entry.attempts + 1
        dead = error.kind == "permanent" or policy.gives_up(attempts)
        text = describe(error)
        self._observer.count("outbox_publish_failures_total", **{"class": error.kind})
        return Failure(
            entry=entry,
            attempts=attempts,
            error=text,
            retry_in=None if dead else policy.delay(attempts),
            blocks=dead and entry.key is not None and self._config.blocks(topic),
            dead_letter=_dead_letter(error, text, self._clock) if dead else None,
        )

    def _after_failure(
        self, group: Sequence[Entry], failure: Failure, now: float, *, stored: bool
    ) -> None:
        head, *rest = group
        if not stored:
            # Another projector owns it now, or it is SENT after all.
            self._observer.count("outbox_lease_lost_total")
            self._window.in_flight -= 1
            self._window.settle(head)
            self._window.give_back(rest)
            self._tenure.changed = True
        elif failure.retry_in is not None:
            head.attempts = failure.attempts
            head.status = OutboxStatus.FAILED
            self._window.delay(group, now + failure.retry_in)
        else:
            envelope = head.envelope
            self._observer.count("outbox_dead_total", topic=envelope.topic)
            _logger.error(
                "event %s of topic %s is DEAD after %d attempts: %s",
                envelope.event_id,
                envelope.topic,
                failure.attempts,
                failure.error,
            )
            self._window.in_flight -= 1
            self._window.settle(head)
            if failure.blocks and head.key is not None:
                self._window.block(head.key, rest)
            elif rest:
                self._window.give_back(rest)
            elif head.key is not None:
                self._window.free(head.key)

    def _trip(self, error: BaseException) -> None:
        now = self._clock.monotonic()
        if self._breaker.is_closed:
            _logger.warning("the broker is in trouble, events wait: %s", describe(error))
        if not self._breaker.is_open(now):
            self._breaker.trip(now, describe(error))
        self._observer.gauge("outbox_circuit_open", 1, destination=self._breaker.name)

    def _trip_topic(self, topic: str, error: BaseException, entry: Entry) -> None:
        if topic in self._topics:
            return
        breaker = Breaker(topic, max_seconds=self._config.breaker_max_seconds, probe=entry)
        breaker.trip(self._clock.monotonic(), describe(error))
        _logger.warning("topic %s is in trouble, its events wait: %s", topic, describe(error))
        self._topics[topic] = breaker
        self._hold_topics()

    def _alert(self, now: float) -> None:
        for breaker in self.breakers:
            if breaker.open_seconds(now) > self._config.breaker_alert_seconds and not self._alerted:
                self._alerted = True
                self._observer.count("outbox_circuit_alerts_total", destination=breaker.name)
                _logger.error(
                    "%s has been in trouble for %d seconds, no event is lost but none goes "
                    "out: %s",
                    breaker.name,
                    breaker.open_seconds(now),
                    breaker.error,
                )


class _LeaseExpiredError(Exception):
    """Our own clock says that somebody else may own the partitions."""


class _DestinationError(Exception):
    """Something escaped the bus; the outcomes are unknown."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _dead_letter(error: PublishError, text: str, clock: Clock) -> dict[str, str]:
    lines = traceback.format_exception(error)
    return {
        "reason": error.kind,
        "exception": text,
        "stack": redact("".join(lines))[-4000:],
        "occurred_at": clock.now().isoformat(),
    }
