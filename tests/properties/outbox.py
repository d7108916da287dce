"""The outbox beside a model of it: what relays and operators do to what writers wrote."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import rule

from semel.operations import OutboxFilter, Verb
from semel.relay import Entry, Failure, Read
from semel.sqlalchemy.layout import PARTITIONS
from semel.sqlalchemy.tables import OutboxRecord
from semel.states import OutboxStatus
from tests.properties.outbox_model import (
    BLOCKING,
    DEAD,
    FAILED,
    HOT,
    LONG_AGO,
    NEW,
    PARKED,
    PUBLISHING,
    RELEASED,
    SCHEDULED,
    SENT,
    OutboxModel,
    Relay,
    Row,
    pick,
    relays,
    topics,
)

VERBS = [Verb.REQUEUE, Verb.REQUEUE, Verb.REPLAY, Verb.RELEASE, Verb.DROP]

mostly, seldom = st.sampled_from([True] * 3 + [False]), st.sampled_from([False] * 3 + [True])
some = st.sets(st.integers(0, 11), min_size=1, max_size=4)


class OutboxMachine(OutboxModel):
    """Every call has the outcome that the contracts say, and no other row changes."""

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
        return relay, pick(relay.held, numbers)

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
        due = pick(waiting, numbers)
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
        # Rows are created in the order of their numbers, but sent in any.
        earlier = OutboxRecord.sequence <= max((row.sequence for row in old), default=0)
        self.run(self._set(OutboxRecord, earlier, created_at=LONG_AGO))
        ids = OutboxRecord.id.in_([row.id for row in old])
        self.run(self._set(OutboxRecord, ids, sent_at=LONG_AGO))
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
