"""A table, a window over it, and whatever may happen between them: nothing is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings, strategies as st

from semel.envelope import MessageEnvelope
from semel.relay import Entry
from semel.window import Window

HOT, PARKED, DEAD, SENT = "hot", "parked", "dead", "sent"


@dataclass
class Row:
    sequence: int
    key: str | None
    topic: str
    place: str = HOT

    @property
    def partition(self) -> int:
        return 0 if self.key is None else ord(self.key) % 2

    def entry(self) -> Entry:
        event_id = f"e{self.sequence}"
        envelope = MessageEnvelope(topic=self.topic, payload=1, event_id=event_id, key=self.key)
        order = None if self.key is None else (envelope.tenant_id, self.key)
        return Entry(self.sequence, self.partition, "NEW", 0, None, order, envelope)


class World:
    """A table, a projector's window over it, and everything that may happen between them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.window = Window(self.chance.choice([20, 150]))
        self.rows: list[Row] = []
        self.flights: list[list[Entry]] = []
        self.retained: list[Entry] = []
        self.unacknowledged: list[Entry] = []
        self.stale: set[int] = set()
        self.now = 0.0
        self.own()

    def act(self) -> None:
        weights = {
            self.commit: 3,
            self.fetch: 6,
            self.take: 10,
            self.land: 10,
            self.acknowledge: 5,
            self.park: 4,
            self.wait: 3,
            self.probe: 1,
            self.sweep: 1,
            self.pause: 0.3,
            self.requeue: 0.3,
            self.lose: 0.2,
            self.leave: 0.3,
            self.hand_over: 1,
            self.own: 1,
        }
        if self.window.overflowed and self.chance.random() < 0.1:
            self.sweep()
        else:
            self.chance.choices(list(weights), list(weights.values()))[0]()
        self.check()

    def row(self, item: Entry) -> Row:
        return self.rows[item.sequence - 1]

    def commit(self) -> None:
        keys = self.chance.choice([["a", "b", "c", None], ["a"]])
        for _ in range(self.chance.choice([1, 5, 100])):
            number = len(self.rows) + 1
            topic = "paused" if self.chance.random() < 0.05 else "orders"
            self.rows.append(Row(number, self.chance.choice(keys), topic))

    def fetch(self) -> None:
        horizons = self.window.lanes.horizons(())
        reads = self.window.reads(everything=self.chance.random() < 0.5)
        found: list[Entry] = []
        for read in reads:
            rows = [
                row
                for row in self.rows[read.floor :]
                if row.place == HOT
                and row.partition == read.partition
                and row.sequence not in read.known
            ]
            found += [row.entry() for row in rows[: read.limit]]
        found.sort(key=lambda item: item.sequence)
        self.window.feed(reads, found, self.now)
        self.window.lanes.raise_floors(reads, horizons)

    def take(self) -> None:
        singly = self.chance.random() < 0.1
        limit = self.chance.choice([1, 5, 20])
        batch = (self.window.sample if singly else self.window.take)(limit, self.now)
        busy = {item.key for flight in self.flights for item in flight} - {None}
        assert not busy & {item.key for item in batch}, "a key is in one batch at a time"
        done = {item.sequence for item in self.unacknowledged}
        for item in batch:
            row = self.row(item)
            # A batch of a tenure that is over may be confirmed after its rows were read again.
            assert row.place == HOT or row.sequence in self.stale, "only hot rows leave"
            left = [
                other.sequence
                for other in self.rows[: item.sequence - 1]
                if other.key is not None
                and other.key == row.key
                and other.place in (HOT, PARKED)
                and other.sequence not in done
            ]
            assert not left, "nothing of its key is before it"
            done.add(item.sequence)
        if batch:
            self.flights.append(batch)

    def land(self) -> None:
        if not self.flights:
            return
        flight = self.flights.pop(self.chance.randrange(len(self.flights)))
        if self.chance.random() < 0.1:
            self.window.give_back(flight)
            return
        groups: dict[object, list[Entry]] = {}
        for item in flight:
            groups.setdefault(item.key or item.sequence, []).append(item)
        for group in groups.values():
            passed = len(group) if self.chance.random() < 0.7 else self.chance.randrange(len(group))
            self.unacknowledged += group[:passed]
            if passed == len(group):
                self.window.land(group)
            else:
                self.fail(group[passed:])

    def fail(self, group: list[Entry]) -> None:
        head, *rest = group
        outcome = self.chance.choice(["back", "delay", "delay", "block", "skip", "recall", "keep"])
        if outcome in ("block", "skip", "recall") and not self.window.lanes.knows(head):
            outcome = "back"  # the fenced write would fail
        if outcome == "back":
            self.window.give_back(group)
        elif outcome == "delay":
            self.window.delay(group, self.now + self.chance.uniform(0, 20))
        elif outcome == "keep":
            kept = self.window.retain(group)
            self.retained += [kept] if kept is not None else []
        elif outcome == "recall":
            self.row(head).place = SENT
            self.window.recall(group)
        elif outcome == "block" and head.key is not None:
            self.row(head).place = DEAD
            self.window.settle(head)
            self.window.block(head.key, rest)
        else:
            self.row(head).place = SENT
            self.window.settle(head)
            if head.key is not None:
                self.window.free(head.key)
            self.window.give_back(rest)

    def probe(self) -> None:
        if self.retained:
            item = self.retained.pop()
            if self.chance.random() < 0.5:
                self.window.land([item])
                self.unacknowledged.append(item)
            else:
                self.window.give_back([item])

    def acknowledge(self) -> None:
        for item in self.unacknowledged:
            self.row(item).place = SENT
            if not self.window.lanes.knows(item):
                self.stale.add(item.sequence)
            self.window.settle(item)
        self.unacknowledged = []

    def park(self) -> None:
        parked, self.window.to_park = self.window.to_park, []
        for item in parked:
            if item.partition in self.window.lanes and self.row(item).place == HOT:
                self.row(item).place = PARKED
            self.window.settle(item)

    def sweep(self) -> None:
        blocked = {("default", row.key) for row in self.rows if row.place == DEAD}
        for row in self.rows:
            if row.place == PARKED and ("default", row.key) not in blocked:
                row.place = HOT
        self.window.holds.blocked = {(tenant, key or "") for tenant, key in blocked}
        self.window.reset()
        for lane in self.window.lanes.values():
            lane.surveyed = True

    def pause(self) -> None:
        on = not self.window.holds.topics
        self.window.holds.topics = frozenset({"paused"} if on else ())
        self.sweep()

    def requeue(self) -> None:
        for row in self.rows:
            if row.place == DEAD:
                row.place = HOT
        self.sweep()

    def wait(self) -> None:
        self.now += self.chance.uniform(0, 10)

    def lose(self) -> None:
        self.acknowledge()
        self.window.drop_lanes([self.chance.randrange(2)])

    def leave(self) -> None:
        if self.window.lanes:
            self.window.leave([self.chance.choice(list(self.window.lanes))])

    def hand_over(self) -> None:
        self.window.drop_lanes(self.window.lanes.left())

    def own(self) -> None:
        for partition in {0, 1} - set(self.window.lanes):
            self.window.lanes.add(partition, 1)
            self.sweep()

    def check(self) -> None:
        """Every known row is in exactly one place."""
        window = self.window
        places = [
            *window._ready,
            *(item for held in window._keys.values() for item in held.queue),
            *(item for _, _, item in window._delayed),
            *window.to_park,
            *self.retained,
            *self.unacknowledged,
            *(item for flight in self.flights for item in flight),
        ]
        ours = [item for item in places if window.lanes.knows(item)]
        known = {id(item) for lane in window.lanes.values() for item in lane.known.values()}
        assert len(ours) == len({id(item) for item in ours}), "doubled"
        assert known == {id(item) for item in ours}, "forgotten"
        assert window.room == window.capacity - len(known)

    def drain(self) -> None:
        """Whatever happened, at the end everything goes out."""
        while self.flights:
            self.window.give_back(self.flights.pop())
        while self.retained:
            self.window.give_back([self.retained.pop()])
        self.acknowledge()
        self.window.drop_lanes(
            [lane.partition for lane in self.window.lanes.values() if lane.leaving]
        )
        self.window.holds.topics = frozenset()
        self.own()
        self.requeue()
        self.now += 1000
        for _ in range(len(self.rows) + 10):
            self.fetch()
            self.take()
            for flight in self.flights:
                self.window.land(flight)
                self.unacknowledged += flight
            self.flights = []
            self.acknowledge()
            self.park()
            if self.window.overflowed:
                self.sweep()
            self.check()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_leave_in_order_and_none_is_lost_whatever_happens(seed: int):
    """Invariants 1, 4 and 6: no loss, order per key, each row in one place at a time."""
    world = World(seed)
    for _ in range(150):
        world.act()
    world.drain()
    assert [] == [row for row in world.rows if row.place != SENT]
