"""`semel status` and `semel consumers`: how it is going."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from semel.cli import shapes
from semel.cli.command import command
from semel.cli.inbox import consumers_table
from semel.cli.terminal import Terminal, ago, clean, plain, print_json, stdout, table
from semel.cli.work import interrupted
from semel.states import InboxStats, OutboxStats, OutboxStatus, Pause

if TYPE_CHECKING:
    from semel.operations import BlockedKey, Lease, Worker
    from semel.sqlalchemy.storage import SqlAlchemyStorage

_KEYS = 5
_UNSENT = (OutboxStatus.NEW, OutboxStatus.PUBLISHING, OutboxStatus.FAILED)


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    command(app)(status)
    command(app)(consumers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one screen shows."""

    outbox: OutboxStats
    blocked: Sequence[BlockedKey]
    pauses: Sequence[Pause]
    workers: Sequence[Worker]
    leases: Sequence[Lease]
    consumers: Sequence[InboxStats]

    @classmethod
    async def take(cls, storage: SqlAlchemyStorage) -> Snapshot:
        """Ask the stores; each looks at a bounded number of rows."""
        return cls(
            outbox=await storage.outbox.stats(),
            blocked=await storage.outbox.blocked_keys(limit=_KEYS),
            pauses=await storage.outbox.pauses(),
            workers=await storage.workers.workers(),
            leases=await storage.workers.leases(),
            consumers=await storage.inbox.stats(),
        )

    def shape(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        alive = [item for item in self.workers if item.is_alive]
        return {
            "backlog": sum(self.outbox.counts[status] for status in _UNSENT),
            "published_per_second": sum(item.published_per_second or 0.0 for item in alive),
            "outbox": plain(self.outbox),
            "blocked_keys": plain(self.blocked),
            "pauses": plain(self.pauses),
            "workers": [shapes.worker(item) for item in self.workers],
            "leases": {
                "held": sum(1 for item in self.leases if item.is_held),
                "total": len(self.leases),
            },
            "breakers": [
                {"worker": item.id, **plain(breaker)} for item in alive for breaker in item.breakers
            ],
            "consumers": plain(self.consumers),
        }

    def picture(self) -> RenderableType:
        """Return the screen."""
        return Group(*self._parts())

    def _parts(self) -> Iterator[RenderableType]:
        shape, stats = self.shape(), self.outbox
        figures = [
            ("backlog", self._figure(shape["backlog"], *_UNSENT), ""),
            ("oldest", ago(stats.oldest_unsent_seconds) or "-", ""),
            ("rate", f"{shape['published_per_second']:,.1f}/s", ""),
            ("failed", self._figure(stats.counts[OutboxStatus.FAILED], "FAILED"), "yellow"),
            ("dead", self._figure(stats.counts[OutboxStatus.DEAD], "DEAD"), "bold red"),
            ("blocked keys", self._figure(stats.blocked_keys, "blocked_keys"), "bold red"),
            ("parked", self._figure(stats.parked, "parked"), ""),
            ("scheduled", self._figure(stats.scheduled, "scheduled"), ""),
            ("sent", self._figure(stats.counts[OutboxStatus.SENT], "SENT"), ""),
        ]
        yield Columns(
            [
                Text.assemble((f"{name} ", "dim"), (value, "" if value in ("0", "-") else style))
                for name, value, style in figures
            ],
            padding=(0, 3),
        )
        for pause in self.pauses:
            what = f"topic {pause.topic}" if pause.topic else f"tenant {pause.tenant_id}"
            what = what if pause.topic or pause.tenant_id else "everything"
            reason = f": {pause.reason}" if pause.reason else ""
            yield Text(clean(f"paused {what}{reason}"), style="yellow")
        for breaker in shape["breakers"]:
            where = f"topic {breaker['topic']}" if breaker["topic"] else "the broker"
            since = str(breaker["since"])[:19].replace("T", " ")
            yield Text(clean(f"in trouble {where} since {since}: {breaker['error']}"), style="red")
        if self.blocked:
            yield Text()
            yield _blocked(self.blocked)
        yield Text()
        yield self._projectors()
        if self.consumers:
            yield Text()
            yield consumers_table(self.consumers)

    def _figure(self, number: int, *names: str) -> str:
        return f"{number:,}{'+' if self.outbox.capped.intersection(names) else ''}"

    def _projectors(self) -> RenderableType:
        if not self.workers:
            return Text("no projector runs: `semel run` or `semel relay`", style="yellow")
        return table(
            ["projector", "heartbeat", "leases", "published", "rate", "waits for"],
            [
                (
                    item.id,
                    Text(
                        f"{ago(item.heartbeat_seconds)} ago", style="" if item.is_alive else "red"
                    ),
                    f"{len(item.partitions)} of {len(self.leases)}",
                    item.published,
                    None
                    if item.published_per_second is None
                    else f"{item.published_per_second:,.1f}/s",
                    item.waiting_for,
                )
                for item in self.workers
            ],
        )


def _blocked(keys: Sequence[BlockedKey]) -> RenderableType:
    return table(
        ["blocked key", "topic", "behind event", "since", "waiting", "error"],
        [
            (key.key, key.topic, key.event_id, key.since, str(key.waiting), key.error)
            for key in keys
        ],
    )


def status(
    terminal: Terminal,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show on one screen how it is going: backlog, rates, dead events, projectors, consumers."""
    if watch:
        terminal.run(lambda storage: _watch(storage, interval, as_json=terminal.as_json))
        return
    snapshot = terminal.run(Snapshot.take)
    terminal.show(snapshot.shape(), snapshot.picture())


async def _watch(storage: SqlAlchemyStorage, interval: float, *, as_json: bool) -> None:
    """Show it until Ctrl-C; as JSON, a line each time."""
    with interrupted() as stop, Live(console=stdout(), auto_refresh=False, screen=False) as live:
        while not stop.is_set():
            snapshot = await Snapshot.take(storage)
            if as_json:
                print_json(snapshot.shape(), indent=None)
            else:
                live.update(snapshot.picture(), refresh=True)
            try:
                await asyncio.wait_for(stop.wait(), interval)
            except TimeoutError:
                continue


def consumers(terminal: Terminal) -> None:
    """List the consumers and what they did; with --hub, what they listen to."""
    hub = terminal.target.find_hub()

    async def work(storage: SqlAlchemyStorage) -> Sequence[InboxStats]:
        return await storage.inbox.stats()

    stats = terminal.run(work)
    registered = [
        {
            "consumer_name": item.name,
            "topic": item.topic,
            "group_id": item.group_id,
            "dead_letter_topic": item.dead_letter_topic,
            "event_types": sorted(item.handlers),
        }
        for item in (hub.consumers.values() if hub is not None else ())
    ]
    pictures: list[RenderableType] = [consumers_table(stats)]
    if registered:
        names = ["consumer", "topic", "group", "dead letters", "types"]
        rows = [
            [", ".join(value) if isinstance(value, list) else value for value in item.values()]
            for item in registered
        ]
        pictures += [Text(), table(names, rows)]
    terminal.show({"stats": plain(stats), "registered": registered}, *pictures)
