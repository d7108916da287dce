"""Faults on demand, for tests of what a broker may do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, PublishError, PublishErrorKind

Predicate = Callable[[MessageEnvelope], bool]


@dataclass(slots=True, kw_only=True)
class Fault:
    """One kind of trouble. `hits` counts how often it struck."""

    when: Predicate | None = None
    times: int | None = None
    ratio: float = 1.0
    every: int = 1
    kind: PublishErrorKind = "transient"
    hits: int = 0
    seen: int = 0

    def strikes(self, message: MessageEnvelope, chance: random.Random) -> bool:
        """Tell whether *message* is hit, and count it."""
        if self.times is not None and self.hits >= self.times:
            return False
        if self.when is not None and not self.when(message):
            return False
        self.seen += 1
        if self.seen % self.every or (self.ratio < 1 and chance.random() >= self.ratio):
            return False
        self.hits += 1
        return True


class Faults:
    """What goes wrong at an `InMemoryMessageBus`; nothing, until it is asked to.

    A fault hits messages for which *when* is true, every *every*-th of them, with the
    probability *ratio*, at most *times* times. The same *seed* gives the same accidents.
    """

    def __init__(self, on_change: Callable[[], None], *, seed: int = 0) -> None:
        self.delay: float = 0.0  # seconds that a call of publish_many takes
        self._on_change = on_change
        self._chance = random.Random(seed)  # noqa: S311  no secret
        self._outage = False
        self._cut: int | None = None
        self._rejections: list[Fault] = []
        self._losses: list[Fault] = []
        self._duplicates: list[Fault] = []

    @property
    def outage(self) -> bool:
        """While true the broker is unreachable: publishing and `ping` raise, deliveries stop."""
        return self._outage

    @outage.setter
    def outage(self, on: bool) -> None:
        self._outage = on
        self._on_change()

    def seed(self, seed: int) -> None:
        """Begin another series of accidents."""
        self._chance.seed(seed)

    def reject(
        self,
        when: Predicate | None = None,
        *,
        kind: PublishErrorKind = "transient",
        times: int | None = None,
        ratio: float = 1.0,
        every: int = 1,
    ) -> Fault:
        """Refuse messages: not delivered, outcome `PublishError` of *kind*."""
        return _add(self._rejections, when, times=times, ratio=ratio, every=every, kind=kind)

    def lose_confirmation(
        self,
        when: Predicate | None = None,
        *,
        times: int | None = None,
        ratio: float = 1.0,
        every: int = 1,
    ) -> Fault:
        """Deliver messages, but say that the outcome is unknown."""
        return _add(self._losses, when, times=times, ratio=ratio, every=every, kind="unknown")

    def duplicate(
        self,
        when: Predicate | None = None,
        *,
        times: int | None = None,
        ratio: float = 1.0,
        every: int = 1,
    ) -> Fault:
        """Deliver messages twice to every group."""
        return _add(self._duplicates, when, times=times, ratio=ratio, every=every)

    def cut_batch(self, after: int) -> None:
        """Lose the connection once: the next batch arrives up to *after* messages, then raises."""
        self._cut = after

    def clear(self) -> None:
        """Repair everything."""
        self.delay, self._cut = 0.0, None
        for faults in (self._rejections, self._losses, self._duplicates):
            faults.clear()
        self.outage = False

    def check_connection(self) -> None:
        """Raise `BusError` during an outage."""
        if self._outage:
            raise BusError("the broker is unreachable (outage on demand)")

    def check_position(self, position: int) -> None:
        """Raise `BusError` where the batch is to be cut."""
        if self._cut is not None and position >= self._cut:
            self._cut = None
            raise BusError("the connection was lost in mid-batch (fault on demand)")

    def rejection(self, message: MessageEnvelope) -> PublishError | None:
        """Return the error with which *message* is refused, if it is."""
        for fault in self._rejections:
            if fault.strikes(message, self._chance):
                return PublishError("rejected (fault on demand)", kind=fault.kind)
        return None

    def loss(self, message: MessageEnvelope) -> PublishError | None:
        """Return the error that hides the arrival of *message*, if one does."""
        for fault in self._losses:
            if fault.strikes(message, self._chance):
                return PublishError("no confirmation (fault on demand)", kind=fault.kind)
        return None

    def copies(self, message: MessageEnvelope) -> int:
        """Return how many times *message* is delivered."""
        return 1 + sum(fault.strikes(message, self._chance) for fault in self._duplicates)


def _add(
    faults: list[Fault],
    when: Predicate | None,
    *,
    times: int | None,
    ratio: float,
    every: int,
    kind: PublishErrorKind = "transient",
) -> Fault:
    if every < 1 or not 0 <= ratio <= 1:
        raise ConfigurationError("a fault needs 0 <= ratio <= 1 and every >= 1")
    fault = Fault(when=when, times=times, ratio=ratio, every=every, kind=kind)
    faults.append(fault)
    return fault
