"""A projector in the model: what it may do next. It may be a zombie at any time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.rows import DEAD, FAILED, NEW, PENDING, PUBLISHING, SENT
from tests.model.world import NOBODY, Outbox, Projector, State

Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of projector *index*."""

    world: Outbox
    state: State
    index: int

    @property
    def own(self) -> Projector:
        """What it remembers."""
        return self.state.projectors[self.index]

    @property
    def is_owner(self) -> bool:
        """Whether it has the lease, and not only believes so."""
        return (self.state.owner, self.state.epoch) == (self.index, self.own.epoch)

    def _do(self, text: str, own: Projector, state: State | None = None, **changes: Any) -> Any:
        state = state or self.state
        others = state.projectors
        changed = (*others[: self.index], own, *others[self.index + 1 :])
        after = state._replace(projectors=changed, **changes)
        return f"P{self.index} (epoch {own.epoch or self.own.epoch}) {text}", after

    def steps(self) -> Steps:
        """Yield what it may do."""
        yield from self._claim()
        if self.own.epoch:
            if self.state.crashes < self.world.crashes:
                yield self._do("dies", Projector(), crashes=self.state.crashes + 1)
            yield from self._survey()
            yield from self._fetch()
            yield from self._raise_floor()
            yield from self._take()
            yield from self._publish()
            yield from self._show()
            yield from self._store()
            yield from self._park()

    def _claim(self) -> Steps:
        """A lease may run out at any time; that of the dead does so for sure."""
        state = self.state
        free = state.owner == NOBODY
        if not free and not self.world.eternal_lease:
            gone = not state.projectors[state.owner].epoch
            free = gone or (state.owner != self.index and state.epoch < self.world.takeovers)
        if free:
            epoch = state.epoch + 1
            own = Projector(epoch=epoch)
            yield self._do("claims the partition", own, owner=self.index, epoch=epoch)

    def _survey(self) -> Steps:
        """Learn which keys are blocked; then bring parked rows back and read afresh."""
        own, state, world = self.own, self.state, self.world
        if own.survey is None:
            dead = frozenset(
                world.key(row.event)
                for row in state.visible()
                if row.status == DEAD and world.dead == "block"
            )
            parked = any(row.parked for row in state.rows)
            meanwhile = world.dead == "block" and own.flight
            if not own.surveyed or dead != own.blocked or parked or meanwhile:
                yield self._do(f"reads the blocked keys: {sorted(dead)}", own._replace(survey=dead))
            return
        after = own._replace(survey=None, surveyed=True, blocked=own.survey)
        if world.read_ahead and own.surveyed:
            yield self._do("goes on with what it has", after)
            return
        rows = tuple(
            row._replace(parked=False)
            if row.parked and world.key(row.event) not in own.survey
            else row
            for row in state.rows
        )
        fresh = after._replace(queue=(), floor=0, horizon=None)
        yield self._do("brings parked rows back and reads afresh", fresh, rows=rows)

    def _unsent(self) -> list[tuple[int, str]]:
        wanted = PENDING - {FAILED} if self.world.filtered_fetch else PENDING
        rows = self.state.visible()
        return [(r.number, r.event) for r in rows if not r.parked and r.status in wanted]

    def _fetch(self) -> Steps:
        own = self.own
        if not own.surveyed and not self.world.hasty_owner:
            return
        known = {number for number, _ in (*own.queue, *own.flight)}
        known |= {number for number, _, _ in own.results}
        unknown = [each for each in self._unsent() if each[0] not in known]
        found = [each for each in unknown if each[0] > own.floor]
        if found:
            ordered = not self.world.read_ahead
            queue = sorted((*own.queue, *found)) if ordered else (*own.queue, *found)
            highest = max(own.highest, found[-1][0])
            after = own._replace(queue=tuple(queue), highest=highest)
            yield self._do(f"fetches {' '.join(event for _, event in found)}", after)
        elif unknown:
            yield self._do("sweeps from the beginning", own._replace(floor=0))

    def _raise_floor(self) -> Steps:
        """Take the highest number seen, look at the locks of writers, then read and raise."""
        own, world = self.own, self.world
        if not world.floor:
            return
        free = all(who == NOBODY for _, who in self.state.locks)
        if own.horizon is None:
            if world.late_horizon:
                if free:
                    yield self._do("finds the slots free", own._replace(horizon=("clear", 0)))
            elif own.highest > own.floor:
                stage = "clear" if world.floor_by_time else "seen"
                seen = own._replace(horizon=(stage, own.highest))
                yield self._do(f"has seen {own.highest}", seen)
        elif own.horizon[0] == "seen":
            clear = own._replace(horizon=("clear", own.horizon[1]) if free else None)
            yield self._do("finds the slots free" if free else "finds a slot locked", clear)
        else:
            height = own.highest if world.late_horizon else own.horizon[1]
            open_ = [number for number, _ in (*self._unsent(), *own.queue, *own.flight)]
            open_ += [number for number, _, _ in own.results]
            floor = min([height, *(number - 1 for number in open_)])
            after = own._replace(floor=max(own.floor, floor), horizon=None)
            yield self._do(f"raises its floor to {after.floor}", after)

    def _take(self) -> Steps:
        """Begin to publish the first event of a key that nothing holds back.

        Not after the lease: a projector's own clock, which it asks at this point, is set so that
        it runs out first. What is under way then arrives at any time.
        """
        own, world = self.own, self.world
        if not self.is_owner and not world.slow_clock:
            return
        held = set(own.blocked) | {world.key(event) for _, event in own.flight}
        for _, event, outcome in own.results:
            if outcome == FAILED or (outcome == DEAD and not world.early_skip):
                held.add(world.key(event))
        for number, event in own.queue:
            if world.key(event) in held:
                continue
            held.add(world.key(event))
            unsent = any(row.number == number and row.status != SENT for row in self.state.rows)
            if world.early_sent and unsent:
                yield f"P{self.index} marks {event} SENT", self.state.move(number, SENT)
                continue
            queue = tuple(each for each in own.queue if each[0] != number)
            attempts = own.attempts | {number} if world.marks else own.attempts
            flight = (*own.flight, (number, event))
            after = own._replace(queue=queue, flight=flight, attempts=attempts)
            yield self._do(f"begins to publish {event}", after)

    def _publish(self) -> Steps:
        """What is under way arrives or not, and the answer too."""
        own, state, world = self.own, self.state, self.world
        for number, event in own.flight:
            landed = own._replace(flight=tuple(e for e in own.flight if e[0] != number))
            again = landed._replace(queue=tuple(sorted((*own.queue, (number, event)))))

            def with_result(
                outcome: str, own: Projector = landed, row: Any = (number, event)
            ) -> Any:
                return own._replace(results=(*own.results, (*row, outcome)))

            arrived = state.broker if event in state.broker else state.broker + event
            yield self._do(f"publishes {event}", with_result(SENT), broker=arrived)
            if state.unknowns < world.unknowns:
                after = with_result(SENT) if world.unknown_is_sent else again
                used: dict[str, Any] = {"unknowns": state.unknowns + 1}
                yield self._do(f"publishes {event}, which is lost unnoticed", after, **used)
                text = f"publishes {event}, and the answer is lost"
                yield self._do(text, after, broker=arrived, **used)
            if event == world.events[0] and not state.rejections:
                if world.fails:
                    failed = with_result(FAILED, again)
                    yield self._do(f"hears that {event} is rejected", failed, rejections=1)
                if world.dead:
                    text = f"hears that {event} is rejected for good"
                    yield self._do(text, with_result(DEAD), rejections=1)

    def _show(self) -> Steps:
        """Mark attempts that last as PUBLISHING, over NEW and FAILED only."""
        status = {row.number: row.status for row in self.state.visible()}
        for number in self.own.attempts:
            if number in status and (self.world.late_mark or status[number] in (NEW, FAILED)):
                own = self.own._replace(attempts=self.own.attempts - {number})
                yield self._do(f"shows {number}", own, self.state.move(number, PUBLISHING))

    def _store(self) -> Steps:
        """Write the first outcome down: SENT by anybody, FAILED and DEAD under the lease."""
        if not self.own.results:
            return
        state, world = self.state, self.world
        number, event, outcome = self.own.results[0]
        status = {row.number: row.status for row in state.visible()}.get(number)
        own = self.own._replace(results=self.own.results[1:])
        if not world.late_mark:
            own = own._replace(attempts=own.attempts - {number})
        if outcome == SENT:
            after = state
            if status not in (None, SENT):
                after = state.move(number, SENT)
                if not world.keep_sent:
                    left = tuple(row for row in after.rows if row.number != number)
                    after = after._replace(rows=left)
            yield self._do(f"acknowledges {event}", own, after)
        elif self.is_owner or world.unfenced_marks:
            yield self._mark(own, number, event, outcome, pending=status in PENDING)
        else:
            yield self._do("learns that its lease is lost", Projector())

    def _mark(self, own: Projector, number: int, event: str, outcome: str, *, pending: bool) -> Any:
        after, key = self.state, self.world.key(event)
        if not pending:
            # SENT or gone after all: what is remembered of the key is out of date.
            queue = tuple(each for each in own.queue if self.world.key(each[1]) != key)
            own = own._replace(surveyed=False, queue=queue)
            return self._do(f"finds {event} finished", own)
        after = after.move(number, outcome)
        if not self.is_owner:
            after = after._replace(fault=f"a zombie made {event} {outcome}")
        if outcome == DEAD and self.world.dead == "block":
            own = own._replace(blocked=own.blocked | {key})
            if own.survey is not None and not self.world.forgetful_survey:
                own = own._replace(survey=own.survey | {key})
        elif outcome == DEAD:
            after = after._replace(skipped=after.skipped + event)
        return self._do(f"stores {event} as {outcome}", own, after)

    def _park(self) -> Steps:
        """Move rows of blocked keys out of the way, under the lease."""
        own, world = self.own, self.world
        numbers = {number for number, event in own.queue if world.key(event) in own.blocked}
        if not numbers or world.read_ahead:
            return
        queue = tuple(each for each in own.queue if each[0] not in numbers)
        rows = self.state.rows
        if self.is_owner:
            rows = tuple(
                row._replace(parked=True)
                if row.number in numbers and row.status in PENDING
                else row
                for row in rows
            )
        yield self._do("parks what is blocked", own._replace(queue=queue), rows=rows)
