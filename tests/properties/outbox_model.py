"""What the outbox should hold: a model of rows and leases, with the rules of writers and leases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from semel.relay import Entry, Instance
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

relays = st.sampled_from(["one", "two"])
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


class OutboxModel(Machine):
    """Writers, and two relays that come and go."""

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
        return pick([row for row in self.rows.values() if row.status in statuses], numbers)

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


def pick(items: Sequence[T], numbers: Collection[int]) -> list[T]:
    chosen = {number % len(items) for number in numbers} if items else ()
    return [item for index, item in enumerate(items) if index in chosen]


def _place(record: Any) -> str | None:
    if record.lane is None:
        return None
    assert record.partition_no == record.lane % PARTITIONS
    return PLACES[record.lane // PARTITIONS]
