"""`semel outbox requeue`, `skip`, `drop` and `replay`: move many events, and tell how far it is."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.filters import EVENTS_OF_VERB
from semel.cli.outbox import app
from semel.cli.terminal import Terminal
from semel.cli.work import interrupted
from semel.errors import ConfigurationError
from semel.operations import OutboxFilter, Verb
from semel.states import OutboxStatus

if TYPE_CHECKING:
    from semel.operations import Count, Progress
    from semel.sqlalchemy.storage import SqlAlchemyStorage

_PAST = {
    Verb.REQUEUE: "requeued",
    Verb.RELEASE: "skipped",
    Verb.DROP: "dropped",
    Verb.REPLAY: "replayed",
}

EventIds = Annotated[
    list[str] | None, typer.Argument(help="The events' ids; or a filter, or --all.")
]
All = Annotated[bool, typer.Option("--all", help="All that are dead.")]


@command(app, risky=True, group=EVENTS_OF_VERB)
def requeue(
    terminal: Terminal, event_ids: EventIds = None, *, where: OutboxFilter, all_: All = False
) -> None:
    """Send dead events again, and then, in order, what waited behind them."""
    _repair(terminal, Verb.REQUEUE, event_ids, where, everything=all_)


@command(app, risky=True, group=EVENTS_OF_VERB)
def skip(
    terminal: Terminal, event_ids: EventIds = None, *, where: OutboxFilter, all_: All = False
) -> None:
    """Leave dead events where they are, but let their keys go on without them."""
    _repair(terminal, Verb.RELEASE, event_ids, where, everything=all_)


@command(app, risky=True, group=EVENTS_OF_VERB)
def drop(
    terminal: Terminal, event_ids: EventIds = None, *, where: OutboxFilter, all_: All = False
) -> None:
    """Delete dead events for good; their keys go on."""
    _repair(terminal, Verb.DROP, event_ids, where, everything=all_)


@command(app, risky=True, group=EVENTS_OF_VERB)
def replay(
    terminal: Terminal,
    *,
    where: OutboxFilter,
    rate: Annotated[float | None, typer.Option(min=0.1, help="At most so many per second.")] = None,
    canary: Annotated[
        int | None,
        typer.Option(min=1, help="Send so many first, then ask; with nobody to ask, stop there."),
    ] = None,
    after: Annotated[
        int, typer.Option(min=0, help="Go on above this sequence, as a stopped run said.")
    ] = 0,
) -> None:
    """Publish sent events again: same ids, in order; consumers' inboxes skip what they know.

    Only what was written before the command started. Name a time range, a topic, a tenant or a
    key.
    """
    if not where.criteria():
        raise ConfigurationError("which events? --since, --until, --topic, --tenant or --key")
    if canary is not None and where.until is None:
        # The rest is a run of its own, whose cut-off would be later.
        where = replace(where, until=datetime.now(UTC))
    bulk = _Bulk(terminal, Verb.REPLAY, where, rate=rate)
    bulk.ask()
    if canary is not None and not terminal.dry_run:
        bulk.run(after=after, limit=canary)
        terminal.say(f"canary: {bulk.changed:,} events replayed, up to sequence {bulk.position}")
        if not bulk.finished:
            bulk.ask_on()
        after = bulk.position
    if not bulk.finished:
        bulk.run(after=after)
    bulk.tell()


def _repair(
    terminal: Terminal,
    verb: Verb,
    event_ids: Sequence[str] | None,
    where: OutboxFilter,
    *,
    everything: bool,
) -> None:
    chosen = [bool(event_ids), bool(where.criteria()), everything]
    if sum(chosen) != 1:
        raise ConfigurationError("which events? Give their ids, or a filter, or --all")
    if event_ids:
        _repair_some(terminal, verb, list(dict.fromkeys(event_ids)))
        return
    bulk = _Bulk(terminal, verb, where)
    bulk.ask()
    bulk.run()
    bulk.tell()


def _repair_some(terminal: Terminal, verb: Verb, event_ids: list[str]) -> None:
    async def look(storage: SqlAlchemyStorage) -> int:
        found = [await storage.outbox.get(event_id) for event_id in event_ids]
        return sum(1 for row in found if row is not None and row.status == OutboxStatus.DEAD)

    async def work(storage: SqlAlchemyStorage) -> int:
        change = getattr(storage.outbox, verb.value)
        changed: int = await change(event_ids, actor=terminal.actor)
        return changed

    allowed = terminal.may(f"{_verb(verb)} {len(event_ids)} events")
    changed = terminal.run(work if allowed else look)
    _tell(terminal, verb, changed, finished=True)
    if changed < len(event_ids):
        terminal.say(f"{len(event_ids) - changed} are not there, or not DEAD")
        raise typer.Exit(Exit.PROBLEM)


class _Bulk:
    """An action on all events that match; Ctrl-C stops it after the batch that is running."""

    def __init__(
        self, terminal: Terminal, verb: Verb, where: OutboxFilter, *, rate: float | None = None
    ) -> None:
        self._terminal = terminal
        self._verb = verb
        status = OutboxStatus.SENT if verb is Verb.REPLAY else OutboxStatus.DEAD
        self._where = replace(where, status=status)
        self._rate = rate
        self.changed = self.position = 0
        self.finished = self.cancelled = False

    def ask(self) -> None:
        """Tell how many it is about, and go on only if that is wanted."""

        async def work(storage: SqlAlchemyStorage) -> Count:
            return await storage.outbox.count(self._where)

        if not self._terminal.dry_run:
            count = self._terminal.run(work)
            self._terminal.may(f"{_verb(self._verb)} {count} events")

    def ask_on(self) -> None:
        """Go on after the canary only if somebody says so."""
        if not sys.stdin.isatty():
            self.tell(f"stopped after the canary; go on with --after {self.position}")
            raise typer.Exit(Exit.OK)
        if not typer.confirm("go on with the rest?", err=True):
            self.tell(f"stopped after the canary; go on with --after {self.position}")
            raise typer.Exit(Exit.PROBLEM)

    def run(self, *, after: int = 0, limit: int | None = None) -> None:
        """Do it, and show how far it is."""
        self._terminal.run(lambda storage: self._work(storage, after, limit))
        if self.cancelled:
            self.tell("cancelled; what is done stays done, go on with the same command")
            raise typer.Exit(Exit.INTERRUPTED)

    async def _work(self, storage: SqlAlchemyStorage, after: int, limit: int | None) -> None:
        before = self.changed
        steps = storage.outbox.bulk(
            self._verb,
            self._where,
            actor=self._terminal.actor,
            after=after,
            limit=limit,
            rate=self._rate,
            dry_run=self._terminal.dry_run,
        )
        with self._terminal.progress(_verb(self._verb)) as advance, interrupted() as stop:
            async with aclosing(cast("AsyncGenerator[Progress]", steps)):
                async for step in steps:
                    self.changed = before + step.changed
                    self.position = step.position
                    self.finished = step.position >= step.up_to
                    advance(self.changed, _share(step))
                    if stop.is_set():
                        self.cancelled = not self.finished
                        return

    def tell(self, note: str | None = None) -> None:
        """Say how it went."""
        _tell(
            self._terminal,
            self._verb,
            self.changed,
            finished=self.finished,
            position=self.position,
            cancelled=self.cancelled,
        )
        if note:
            self._terminal.say(note)


def _share(step: Progress) -> float:
    return (step.position - step.first) / max(1, step.up_to - step.first)


def _tell(terminal: Terminal, verb: Verb, changed: int, **details: Any) -> None:
    shape = {
        "verb": _verb(verb),
        "changed": changed,
        "dry_run": terminal.dry_run,
        "finished": True,
        "cancelled": False,
        "position": None,
        **details,
    }
    would = "would be " if terminal.dry_run else ""
    terminal.show(shape, f"{changed:,} events {would}{_PAST[verb]}")


def _verb(verb: Verb) -> str:
    return "skip" if verb is Verb.RELEASE else verb.value
