"""Give batches to the broker, and deal with each event's outcome."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from semel.breaker import Breaker
from semel.charging import Charge, Charges
from semel.destinations import Destinations
from semel.errors import PublishError, describe
from semel.failpoints import failpoint
from semel.holds import Suspicion
from semel.observer import NullObserver, system_of
from semel.protocols import Clock, MessageBus, Observer
from semel.relay import Entry, Key, RelayStore
from semel.sending import DestinationError, LeaseExpiredError, Sender, is_trouble
from semel.settings import OutboxProjectorConfig
from semel.states import OutboxStatus
from semel.tenure import Tenure
from semel.window import Window

_AGAIN_SECONDS = 0.5
# So often may an event have trouble while others pass before it is blamed.
_DOUBT = 3
# So many failures in a row, one event at a time, are enough to suspect the destination.
_PATIENCE = 10


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
        self._store = store
        self._window = window
        self._tenure = tenure
        self._config = config
        self._clock = clock
        self._observer = observer
        self._measures = type(observer) is not NullObserver
        self._system = system_of(bus)
        self.destinations = Destinations(window, config=config, clock=clock, observer=observer)
        self._charges = Charges(
            store, window, tenure, config=config, clock=clock, observer=observer
        )
        self._sender = Sender(
            bus,
            store,
            window,
            tenure,
            self._charges,
            timeout_seconds=config.publish_timeout_seconds,
            observer=observer,
        )
        self._sent: list[Entry] = []
        self._flights = 0
        self._solo = False
        self.published = 0

    @property
    def failed(self) -> int:
        """How many attempts were rejected for the event's own sake."""
        return self._charges.charged

    @property
    def unacknowledged(self) -> bool:
        """Whether confirmed events are not marked in the table yet."""
        return bool(self._sent)

    @property
    def has_slot(self) -> bool:
        """Whether another batch could be sent; a probe and a suspect go alone."""
        return (
            self.destinations.accept
            and self.destinations.broker.is_closed
            and not self._solo
            and self._flights < self._config.concurrency
        )

    async def close(self) -> None:
        """Finish what goes on beside the batches."""
        await self._sender.close()
        self.destinations.leave()

    def next_batches(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what to run now: batches, or a probe after trouble."""
        now = self._clock.monotonic()
        destinations = self.destinations
        destinations.alert(now)
        topics = destinations.due_topics(now)
        if self._solo or not destinations.accept:
            return
        if not destinations.broker.is_closed:
            if self._flights == 0:
                self._flights += 1
                yield self._probe()
            return
        for topic, breaker in topics:
            breaker.probing = True
            yield self._probe_topic(topic, breaker)
        size = self._config.batch_size
        while self._flights < self._config.concurrency and not self._solo:
            if self._flights and self._window.is_filling(size, now):
                return  # many small batches cost more than a few large ones
            free = not self._flights and not self._sent
            batch = self._window.take(size, now, solo=free)
            if not batch:
                return
            self._flights += 1
            self._solo = batch[0].status == OutboxStatus.PUBLISHING
            yield self._publish(batch)

    async def _publish(self, batch: list[Entry]) -> None:
        try:
            await self._deliver(batch)
        finally:
            self._flights -= 1
            self._solo = False

    async def _deliver(self, batch: list[Entry]) -> bool:
        """Send a batch; return whether the broker is well."""
        if self._charges.is_deadly(batch[0]):
            error = PublishError("the process died at each attempt", kind="permanent")
            await self._charges.charge([(batch, error)])
            return True
        try:
            results = await self._sender.send(batch)
        except DestinationError as error:
            results = [PublishError(describe(error.cause), kind="unknown")] * len(batch)
        except LeaseExpiredError:
            self._window.give_back(batch)
            return False
        except BaseException:
            self._window.give_back(batch)
            raise
        if any(results):
            return await self._sort_out(batch, results)
        self._window.land(batch)
        self._confirm(batch)
        return True

    async def _sort_out(
        self, batch: Sequence[Entry], results: Sequence[PublishError | None]
    ) -> bool:
        """Confirm, charge, delay; per key only the first event that failed is to blame."""
        confirmed: list[Entry] = []
        failed: dict[Key | int, tuple[list[Entry], PublishError]] = {}
        for entry, result in zip(batch, results, strict=True):
            if result is None:
                confirmed.append(entry)
            else:
                failed.setdefault(entry.key or entry.sequence, ([], result))[0].append(entry)
        self._window.land([e for e in confirmed if (e.key or e.sequence) not in failed])
        self._confirm(confirmed)
        charges: list[Charge] = [i for i in failed.values() if not is_trouble(i[1])]
        troubled = [item for item in failed.values() if is_trouble(item[1])]
        well = True
        if troubled:
            passed = {entry.envelope.topic for entry in confirmed}
            well = bool(confirmed) or self._others_passed(batch)
            if well:
                charges += self._after_trouble(troubled, passed)
            else:
                self._window.give_back([entry for group, _ in troubled for entry in group])
                self.destinations.trip(troubled[0][1])
        if charges:
            await self._charges.charge(charges)
        return well

    def _others_passed(self, batch: Sequence[Entry]) -> bool:
        """Tell whether *batch* is one event, sent alone, whose topic is well."""
        suspicion = self._window.alone.get(batch[0].sequence) if len(batch) == 1 else None
        return suspicion is not None and self.destinations.has_passed_since(
            batch[0].envelope.topic, suspicion.since
        )

    def _after_trouble(self, troubled: Sequence[Charge], passed: set[str]) -> list[Charge]:
        """Some events had trouble while others passed: a topic's or their own.

        Each is sent alone from now on; returns those that have failed so too often.
        """
        now = self._clock.monotonic()
        guilty: list[Charge] = []
        for group, error in troubled:
            head, alone = group[0], self._window.alone
            times = alone[head.sequence].times if head.sequence in alone else 0
            if error.kind == "destination" and not times and head.envelope.topic not in passed:
                self.destinations.trip_topic(group, error)
                continue
            alone[head.sequence] = Suspicion(now, times + 1)
            if times >= _DOUBT:
                guilty.append((group, error))
            else:
                pause = random.uniform(0.5, 1.0) * _AGAIN_SECONDS  # noqa: S311  no secret
                self._window.delay(group, now + pause)
        return guilty

    async def _probe(self) -> None:
        """Ask whether the broker answers; then try a batch or, if that failed before, singles."""
        try:
            await self._sender.ping()
            now, size = self._clock.monotonic(), self._config.batch_size
            if self.destinations.broker.trips < 2:
                batch = self._window.take(size, now)
                well = await self._deliver(batch) if batch else True
            else:
                well = await self._deliver_singly(self._window.sample(size, now))
            if well:
                self.destinations.recover()
        except DestinationError as error:
            self.destinations.trip(error.cause)
        finally:
            self._flights -= 1

    async def _probe_topic(self, topic: str, breaker: Breaker) -> None:
        """Try the event again that showed the trouble; the others of its topic stay parked."""
        entry = breaker.probe
        try:
            if entry is not None:
                result = await self._try(entry)
                if is_trouble(result):
                    breaker.trip(self._clock.monotonic(), describe(result))
                    return
                breaker.probe = None
                if result is None:
                    self._window.land([entry])
                    self._confirm([entry])
                else:
                    await self._charges.charge([([entry], result)])
        except LeaseExpiredError:
            return
        finally:
            breaker.probing = False
        self.destinations.recover_topic(topic)
        self._tenure.changed = True

    async def _try(self, entry: Entry) -> PublishError | None:
        try:
            return (await self._sender.send([entry]))[0]
        except DestinationError as error:
            return PublishError(describe(error.cause), kind="destination")

    async def _deliver_singly(self, entries: Sequence[Entry]) -> bool:
        """Find out whether the destination or single events are to blame."""
        waiting = deque(entries)
        failed: list[tuple[int, Entry, PublishError]] = []
        passed: dict[str, int] = {}
        try:
            for position in range(len(entries)):
                if len(failed) >= _PATIENCE and not passed:
                    break
                entry = waiting[0]
                result = await self._try(entry)
                waiting.popleft()
                if result is None:
                    passed[entry.envelope.topic] = position
                    self._window.land([entry])
                    self._confirm([entry])
                else:
                    failed.append((position, entry, result))
        except LeaseExpiredError:
            waiting.extendleft(entry for _, entry, _ in reversed(failed))
            return False
        except BaseException:
            waiting.extendleft(entry for _, entry, _ in reversed(failed))
            raise
        finally:
            self._window.give_back(list(waiting))
        return await self._judge(failed, passed)

    async def _judge(
        self, failed: Sequence[tuple[int, Entry, PublishError]], passed: dict[str, int]
    ) -> bool:
        """Blame an event if others of its topic passed after it, else the topic or the broker."""
        now = self._clock.monotonic()
        last = max(passed.values(), default=-1)
        charges: list[Charge] = []
        unclear: list[tuple[Entry, PublishError]] = []
        for position, entry, error in failed:
            topic = entry.envelope.topic
            if not is_trouble(error):
                charges.append(([entry], error))
            elif passed.get(topic, -1) > position:
                self._window.alone[entry.sequence] = Suspicion(now, _DOUBT)
                charges.append(([entry], error))
            elif topic not in passed and last > position:
                self.destinations.trip_topic([entry], error)
            else:
                unclear.append((entry, error))
        well = not unclear or bool(passed or charges)
        # With a full window other topics may wait unseen behind those that fail.
        suspect = not well and self._window.room <= 0
        for entry, error in unclear:
            if suspect:
                self.destinations.trip_topic([entry], error)
            else:
                self._window.give_back([entry])
        if charges:
            await self._charges.charge(charges)
        if not well and not suspect:
            self.destinations.trip(unclear[0][1])
        return well or suspect

    def _confirm(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        self._sent.extend(entries)
        self.published += len(entries)
        self.destinations.passed(entries)
        if self._measures:
            self._measure(entries)

    def _measure(self, entries: Sequence[Entry]) -> None:
        now, observer = self._clock.now(), self._observer
        topics: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            topics[entry.envelope.topic].append(entry)
        for topic, group in topics.items():
            observer.count(
                "outbox_published_total", len(group), topic=topic, transport=self._system
            )
            latencies = [
                max(0.0, (now - entry.due_at).total_seconds())
                for entry in group
                if entry.due_at is not None
            ]
            observer.record("outbox_publish_latency_seconds", *latencies, topic=topic)
        observer.gauge("outbox_relay_last_success_timestamp_seconds", now.timestamp())

    async def acknowledge(self) -> None:
        """Mark all confirmed events in the table with one statement."""
        sent, self._sent = self._sent, []
        if not sent:
            return
        try:
            failpoint("relay.before_acknowledge")
            await self._store.acknowledge(
                [entry.sequence for entry in sent], keep=self._config.keep_sent
            )
            failpoint("relay.after_acknowledge")
        except BaseException:
            self._sent = sent + self._sent
            raise
        for entry in sent:
            self._window.settle(entry)
