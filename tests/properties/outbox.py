"""The outbox beside a model of it: writers, two relays and their leases, operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from semel.operations import OutboxFilter, Verb
from semel.relay import Entry, Failure, Instance, Read
from semel.sqlalchemy.layout import PARTITIONS
from semel.sqlalchemy.tables import OutboxLease, OutboxRecord
from semel.states import OutboxStatus
from semel.testing.contracts.rows import instance
from tests.properties.world import Machine, World

T = TypeVar("T")

HOT, PARKED, SCHEDULED, BLOCKING, RELEASED = "hot", "parked", "scheduled", "blocking", "released"
PLACES = (HOT, PARKED, SCHEDULED, BLOCKING, RELEASED)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)
NEW, PUBLISHING, SENT, FAILED, DEAD = (status.value for status in OutboxStatus)

TROUBLES = ["_lease_runs_out", "_stop", "_crash"]
VERBS = [Verb.REQUEUE, Verb.REQUEUE, Verb.REPLAY, Verb.RELEASE, Verb.DROP]

relays = st.sampled_from(["one", "two"])
mostly, seldom = st.sampled_from([True] * 3 + [False]), st.sampled_from([False] * 3 + [True])
some = st.sets(st.integers(0, 11), min_size=1, max_size=4)
topics = st.sampled_from(["orders", "mails"])
adding = st.tuples(
    st.just("add"),
    st.sampled_from(["a", "b", "c", None]),
    topics,
    st.sampled_from([False] * 4 + [True]),
)
scripts = st.lists(
    st.one_of(adding, adding, st.sampled_from(["savepoint", "undo", "keep"])),
    min_size=2,
    max_size=9,
)


@dataclass
class Row:
    """What should be known of an event."""

    id: str
    tenant: str
    topic: str
    key: str | None
    place: str | None = HOT
    status: str = NEW
    attempts: int = 0
    sequence: int = 0
    partition: int = 0
    aged: bool = False


@dataclass
class Lease:
    owner: str | None = None
    epoch: int = 0
    expired: bool = False


@dataclass
class Relay:
    """A projector as it knows itself: it may be mistaken about its leases."""

    instance: Instance
    epochs: dict[int, int] = field(default_factory=dict)
    held: Sequence[Entry] = ()


class OutboxMachine(Machine):
    """Every call has the outcome that the contracts say, and no other row changes."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.rows: dict[str, Row] = {}
        self.leases = {number: Lease() for number in range(PARTITIONS)}
        self.relays = {name: self._start(name) for name in ("one", "two")}
        self.pauses: set[str] = set()

    def _start(self, name: str) -> Relay:
        return Relay(instance(f"{name}-{uuid4().hex[:6]}"))

    def _numbered(self) -> dict[int, Row]:
        return {row.sequence: row for row in self.rows.values()}

    def _chosen(self, numbers: Collection[int], *statuses: str) -> list[Row]:
        return _pick([row for row in self.rows.values() if row.status in statuses], numbers)

    def _busy(self, name: str, numbers: Collection[int], late: bool) -> tuple[Relay, list[Entry]]:
        """A relay with something in its hands, if there is anything.

        If it is late, it has slept for longer than its lease, and does not know it.
        """
        if not self.relays[name].held:
            self._claim(name, PARTITIONS)
            self.fetch(name, 1000, set())
        if late:
            self._lease_runs_out(name)
            self._claim("two" if name == "one" else "one", PARTITIONS)
        relay = self.relays[name]
        return relay, _pick(relay.held, numbers)

    def _holds(self, relay: Relay, number: int) -> bool:
        lease = self.leases[number]
        return lease.owner == relay.instance.id and lease.epoch == relay.epochs.get(number)

    async def _set(self, table: Any, where: Any, **values: Any) -> None:
        async with self.storage.engine.begin() as connection:
            await connection.execute(update(table).where(where).values(**values))

    # Writers

    @initialize(script=scripts)
    def begin(self, script: list[Any]) -> None:
        self.transact(script, "commit", "default")

    @rule(
        script=scripts,
        end=st.sampled_from(["commit", "commit", "commit", "rollback", "leave", "collide"]),
        tenant=st.sampled_from(["default", "acme"]),
    )
    def transact(self, script: list[Any], end: str, tenant: str) -> None:
        self.run(self._transact(script, end, tenant))

    async def _transact(self, script: list[Any], end: str, tenant: str) -> None:
        levels: list[list[Row]] = [[]]
        nested: list[Any] = []
        known = next(iter(self.rows), None)
        async with self.storage.unit_of_work(tenant_id=tenant) as uow:
            for step in script:
                if step == "savepoint":
                    nested.append(await uow.session.begin_nested())
                    levels.append([])
                elif step == "undo" and nested:
                    await nested.pop().rollback()
                    levels.pop()
                elif step == "keep" and nested:
                    await nested.pop().commit()
                    inner = levels.pop()
                    levels[-1] += inner
                elif isinstance(step, tuple):
                    levels[-1].append(await self._add(uow, tenant, *step[1:]))
            if end == "commit":
                await uow.commit()
            elif end == "rollback":
                await uow.rollback()
            elif end == "collide" and known is not None:
                await uow.outbox.add("orders", 1, event_id=known)
                with pytest.raises(IntegrityError):
                    await uow.commit()
        if end == "commit":
            self.rows |= {row.id: row for level in levels for row in level}
            await self._learn()

    async def _add(self, uow: Any, tenant: str, key: str | None, topic: str, later: bool) -> Row:
        when = FAR_AWAY if later else None
        record = await uow.outbox.add(topic, {"n": 1}, key=key, available_at=when)
        return Row(record.id, tenant, topic, key, SCHEDULED if later else HOT)

    async def _learn(self) -> None:
        """Numbers and partitions are the database's choice, but a key has one partition."""
        partitions: dict[tuple[str, str], int] = {}
        for record in await self._table():
            row = self.rows[record.id]
            row.sequence, row.partition = record.sequence, record.partition_no
            if row.key is not None:
                lane = partitions.setdefault((row.tenant, row.key), row.partition)
                assert lane == row.partition

    async def _table(self) -> Sequence[Any]:
        table = OutboxRecord.__table__
        columns = ("id", "sequence", "partition_no", "tenant_id", "topic", "order_key")
        state = ("status", "retry_count", "lane")
        query = select(table.c[*columns, *state]).order_by(table.c.sequence)
        async with self.storage.engine.connect() as connection:
            return (await connection.execute(query)).all()

    # Leases

    @rule(name=relays, limit=st.sampled_from([64, 64, 40]), first=st.booleans())
    def heartbeat(self, name: str, limit: int, first: bool) -> None:
        if first:
            self._renew(name)
        self._claim(name, limit)

    def _claim(self, name: str, limit: int) -> None:
        relay = self.relays[name]
        free = {n for n, lease in self.leases.items() if lease.owner is None or lease.expired}
        claims = self.run(self.storage.relay.claim(relay.instance, limit))
        assert min(limit, len(free)) == len({claim.partition for claim in claims})
        for claim in claims:
            lease = self.leases[claim.partition]
            assert claim.partition in free
            assert lease.epoch + 1 == claim.epoch
            assert (lease.owner not in (None, relay.instance.id)) is claim.from_dead_owner
            self.leases[claim.partition] = Lease(relay.instance.id, claim.epoch)
            relay.epochs[claim.partition] = claim.epoch

    def _renew(self, name: str) -> None:
        """It renews what nobody has taken, and tells what is left."""
        relay = self.relays[name]
        standing = self.run(self.storage.relay.heartbeat(relay.instance))
        mine = {n: lease for n, lease in self.leases.items() if lease.owner == relay.instance.id}
        assert {number: lease.epoch for number, lease in mine.items()} == standing.leases
        assert self.pauses == {pause.topic for pause in standing.pauses}
        for lease in mine.values():
            lease.expired = False

    @rule(name=relays, kind=st.sampled_from(TROUBLES))
    def trouble(self, name: str, kind: str) -> None:
        getattr(self, kind)(name)

    def _lease_runs_out(self, name: str) -> None:
        owner = self.relays[name].instance.id
        self.run(self._set(OutboxLease, OutboxLease.owner == owner, expires_at=LONG_AGO))
        for lease in self.leases.values():
            lease.expired = lease.expired or lease.owner == owner

    def _stop(self, name: str) -> None:
        relay = self.relays[name]
        self.run(self.storage.relay.retire(relay.instance))
        for lease in self.leases.values():
            if lease.owner == relay.instance.id:
                lease.owner, lease.expired = None, False
        relay.epochs, relay.held = {}, ()

    def _crash(self, name: str) -> None:
        """Its leases stay until they run out; whoever comes back is somebody else."""
        self.relays[name] = self._start(name)

    # Reading

    @rule(name=relays, limit=st.sampled_from([2, 1000]), skip=st.sets(topics, max_size=1))
    def fetch(self, name: str, limit: int, skip: set[str]) -> None:
        relay = self.relays[name]
        known = {entry.sequence for entry in relay.held}
        reads = [Read(number, 0, limit, known) for number in relay.epochs]
        expected: list[Row] = []
        for number in relay.epochs:
            hot = [
                row
                for row in self.rows.values()
                if (row.partition, row.place) == (number, HOT)
                and row.topic not in skip
                and row.sequence not in known
            ]
            expected += sorted(hot, key=lambda row: row.sequence)[:limit]
        found = self.run(self.storage.relay.fetch(reads, skip_topics=skip)) if reads else []
        assert sorted((r.sequence, r.id, r.status, r.attempts) for r in expected) == [
            (e.sequence, e.envelope.event_id, e.status, e.attempts) for e in found
        ]
        relay.held = [*relay.held, *found]

    @rule(name=relays)
    def survey_and_unpark(self, name: str) -> None:
        """Rows that plain SQL made NEW are hot again; parked ones, unless their key is blocked."""
        owned = set(self.relays[name].epochs)
        ours = [row for row in self.rows.values() if row.partition in owned]
        revived = [r for r in ours if r.place in (BLOCKING, RELEASED) and r.status != DEAD]
        for row in revived:
            row.place = HOT
        blocked = {(r.tenant, r.key) for r in ours if r.place == BLOCKING}
        survey = self.run(self.storage.relay.survey(owned))
        assert (blocked, len(revived)) == (set(survey.blocked), survey.revived)
        back = [r for r in ours if r.place == PARKED and (r.tenant, r.key) not in blocked]
        assert len(back) == self.run(self.storage.relay.unpark(owned, blocked=survey.blocked))
        for row in back:
            row.place = HOT

    @rule(name=relays, numbers=some)
    def promote(self, name: str, numbers: set[int]) -> None:
        waiting = [row for row in self.rows.values() if row.place == SCHEDULED]
        due = _pick(waiting, numbers)
        ids = OutboxRecord.id.in_([row.id for row in due])
        self.run(self._set(OutboxRecord, ids, available_at=LONG_AGO))
        for row in waiting:
            row.aged = row.aged or row in due
        owned = set(self.relays[name].epochs)
        moved, wait = self.run(self.storage.relay.promote(owned))
        lowest: dict[int, int] = {}
        for row in waiting:
            if row.partition in owned and row.aged:
                row.place, row.aged = HOT, False
                lowest[row.partition] = min(row.sequence, lowest.get(row.partition, row.sequence))
        assert lowest == moved
        later = [r for r in waiting if r.place == SCHEDULED and r.partition in owned]
        assert bool(later) is (wait is not None and wait > 0)

    # Outcomes, of a relay that may have lost its leases long ago

    @rule(name=relays, numbers=some, keep=mostly, late=seldom)
    def sent(self, name: str, numbers: set[int], keep: bool, late: bool) -> None:
        _, entries = self._busy(name, numbers, late)
        chosen = {entry.sequence for entry in entries}
        rows = [r for n, r in self._numbered().items() if n in chosen and r.place is not None]
        assert len(rows) == self.run(self.storage.relay.acknowledge(sorted(chosen), keep=keep))
        for row in rows:
            row.place, row.status = None, SENT
            if not keep:
                del self.rows[row.id]

    @rule(name=relays, numbers=some, count=st.sampled_from([None, False, True]), late=seldom)
    def under_way(self, name: str, numbers: set[int], count: bool | None, late: bool) -> None:
        """Marked as tried for long, counted beforehand, or parked behind a blocked key."""
        if count is None:
            self._park(name, numbers, late)
        else:
            self._begin(name, numbers, count, late)

    def _begin(self, name: str, numbers: set[int], count: bool, late: bool) -> None:
        relay, entries = self._busy(name, numbers, late)
        self.run(self.storage.relay.begin(relay.instance, entries, count=count))
        numbered = self._numbered()
        for row in [numbered[e.sequence] for e in entries if e.sequence in numbered]:
            if row.status in ((NEW, FAILED, PUBLISHING) if count else (NEW, FAILED)):
                row.status = PUBLISHING
                row.attempts += count

    @rule(
        name=relays,
        numbers=some,
        retry=st.sampled_from([0.0, 60.0, None, None]),
        blocks=st.booleans(),
        late=seldom,
    )
    def failed(
        self, name: str, numbers: set[int], retry: float | None, blocks: bool, late: bool
    ) -> None:
        relay, entries = self._busy(name, numbers, late)
        failures = [
            Failure(
                entry=entry,
                attempts=entry.attempts + 1,
                error="no",
                retry_in=retry,
                blocks=blocks and entry.key is not None,
            )
            for entry in entries
        ]
        written = self.run(self.storage.relay.fail(relay.instance, relay.epochs, failures))
        numbered, expected = self._numbered(), set[int]()
        for failure in failures:
            row = numbered.get(failure.entry.sequence)
            if row and row.status not in (SENT, DEAD) and self._holds(relay, row.partition):
                row.status, row.attempts = failure.status.value, failure.attempts
                row.place = HOT if retry is not None else BLOCKING if failure.blocks else RELEASED
                expected.add(row.sequence)
        assert expected == set(written)

    def _park(self, name: str, numbers: set[int], late: bool) -> None:
        relay, entries = self._busy(name, numbers, late)
        chosen = {entry.sequence for entry in entries}
        self.run(self.storage.relay.park(relay.instance, relay.epochs, chosen))
        for row in self.rows.values():
            if row.sequence in chosen and row.place == HOT and self._holds(relay, row.partition):
                row.place = PARKED

    # Operators

    @rule(numbers=some, verb=st.sampled_from(VERBS), topic=st.one_of(st.none(), topics))
    def repair(self, numbers: set[int], verb: Verb, topic: str | None) -> None:
        """Some events by their ids, or all of a topic."""
        for name in self.relays:
            if not self._chosen(numbers, DEAD):
                self.failed(name, numbers, retry=None, blocks=True, late=False)
        if topic is None and verb is not Verb.REPLAY:
            rows = self._chosen(numbers, DEAD) + self._chosen(numbers, SENT, NEW)
            act = getattr(self.storage.outbox, verb.value)
            changed = self.run(act([row.id for row in rows]))
        else:
            rows = [row for row in self.rows.values() if topic in (None, row.topic)]
            changed = self.run(self._bulk(verb, OutboxFilter(topic=topic)))
        self._moved(verb, rows, changed)

    async def _bulk(self, verb: Verb, where: OutboxFilter) -> int:
        changed = 0
        async for progress in self.storage.outbox.bulk(verb, where, batch_size=2):
            changed = progress.changed
        return changed

    def _moved(self, verb: Verb, rows: list[Row], changed: int) -> None:
        wanted = SENT if verb is Verb.REPLAY else DEAD
        rows = [row for row in rows if row.status == wanted]
        if verb is Verb.RELEASE:
            rows = [row for row in rows if row.place == BLOCKING]
        for row in rows:
            if verb is Verb.RELEASE:
                row.place = RELEASED
            elif verb is Verb.DROP:
                del self.rows[row.id]
            else:
                row.status, row.attempts, row.place = NEW, 0, PARKED
        assert len(rows) == changed

    @rule(numbers=some)
    def plain_sql(self, numbers: set[int]) -> None:
        """What operators do who know the table only."""
        rows = self._chosen(numbers, DEAD)
        self.run(self._set(OutboxRecord, OutboxRecord.id.in_([row.id for row in rows]), status=NEW))
        for row in rows:
            row.status = NEW

    @rule(numbers=some)
    def cleanup(self, numbers: set[int]) -> None:
        """Old rows go if they were sent, and no others."""
        old = self._chosen(numbers, *OutboxStatus)
        for row in self.rows.values():
            row.aged = row.aged and row.status != SENT
        ids = OutboxRecord.id.in_([row.id for row in old])
        self.run(self._set(OutboxRecord, ids, created_at=LONG_AGO, sent_at=LONG_AGO))
        gone = [row for row in old if row.status == SENT]
        hour = timedelta(hours=1)
        assert len(gone) == self.run(self.storage.outbox.cleanup(older_than=hour, batch_size=2))
        for row in gone:
            del self.rows[row.id]

    @rule(topic=topics)
    def pause_or_resume(self, topic: str) -> None:
        if topic in self.pauses:
            assert self.run(self.storage.outbox.resume(topic=topic))
        else:
            self.run(self.storage.outbox.pause(topic=topic, reason="now"))
        self.pauses ^= {topic}

    # What always holds

    @invariant()
    def the_table_is_as_it_should_be(self) -> None:
        """No event is lost, none is doubled, their numbers are in the order of their commits."""
        expected = [
            (r.id, r.tenant, r.topic, r.key, r.status, r.attempts, r.place)
            for r in self.rows.values()
        ]
        found = [
            (r.id, r.tenant_id, r.topic, r.order_key, r.status, r.retry_count, _place(r))
            for r in self.run(self._table())
        ]
        assert expected == found

    @precondition(lambda self: self.rows)
    @rule()
    def figures(self) -> None:
        stats = self.run(self.storage.outbox.stats())
        rows = self.rows.values()
        for status in OutboxStatus:
            assert sum(row.status == status for row in rows) == stats.counts[status]
        places = [row.place for row in rows]
        assert (places.count(SCHEDULED), places.count(PARKED)) == (stats.scheduled, stats.parked)
        blocked = {(r.tenant, r.key) for r in rows if r.place == BLOCKING}
        assert len(blocked) == stats.blocked_keys


def _pick(items: Sequence[T], numbers: Collection[int]) -> list[T]:
    chosen = {number % len(items) for number in numbers} if items else ()
    return [item for index, item in enumerate(items) if index in chosen]


def _place(record: Any) -> str | None:
    if record.lane is None:
        return None
    assert record.partition_no == record.lane % PARTITIONS
    return PLACES[record.lane // PARTITIONS]
