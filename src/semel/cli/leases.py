"""`semel lease`: which projector may publish what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli import shapes
from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.terminal import Terminal, ago, table
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.operations import Lease, Worker
    from semel.sqlalchemy.storage import SqlAlchemyStorage

app = typer.Typer(help="Look at the projectors' leases.", no_args_is_help=True)


@command(app, "list")
def list_(terminal: Terminal) -> None:
    """List the projectors, and which partitions each may publish."""

    async def work(storage: SqlAlchemyStorage) -> tuple[Sequence[Worker], Sequence[Lease]]:
        return await storage.workers.workers(), await storage.workers.leases()

    workers, leases = terminal.run(work)
    held = [lease for lease in leases if lease.is_held]
    terminal.show(
        {
            "workers": [shapes.worker(item) for item in workers],
            "leases": [shapes.lease(item) for item in leases],
        },
        table(
            ["projector", "scope", "heartbeat", "partitions", "waits for"],
            [
                (
                    item.id,
                    item.scope,
                    f"{ago(item.heartbeat_seconds)} ago",
                    owned(item, held),
                    item.waiting_for,
                )
                for item in workers
            ],
        ),
        f"{len(held)} of {len(leases)} partitions are held",
    )


@command(app, risky=True)
def release(
    terminal: Terminal,
    *,
    owner: Annotated[str | None, typer.Option(help="The projector to take leases from.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition to free.")] = None,
    scope: Annotated[str, typer.Option(help="A tenant, or * for all of them.")] = "*",
) -> None:
    """Take leases away: the owner can write no outcome any more, others claim them when the
    time of the lease is over.
    """
    if owner is None and partition is None:
        raise ConfigurationError("which leases? --owner ID or --partition NUMBER; see `lease list`")
    whose = f"the leases of {owner}" if owner is not None else f"the lease of partition {partition}"

    async def matching(storage: SqlAlchemyStorage) -> int:
        return sum(
            1
            for lease in await storage.workers.leases()
            if lease.scope == scope
            and lease.owner is not None
            and owner in (None, lease.owner)
            and partition in (None, lease.partition)
        )

    async def work(storage: SqlAlchemyStorage) -> int:
        return await storage.workers.release_leases(
            owner=owner, partition=partition, scope=scope, actor=terminal.actor
        )

    allowed = terminal.may(f"take away {whose}")
    released = terminal.run(work if allowed else matching)
    shape = {"released": released, "dry_run": terminal.dry_run}
    terminal.show(shape, f"{released} leases {'released' if allowed else 'would be released'}")
    if not released:
        raise typer.Exit(Exit.PROBLEM)


def owned(worker: Worker, leases: Sequence[Lease]) -> str:
    """Return the partitions that *worker* holds, ranges joined."""
    numbers = sorted(
        lease.partition
        for lease in leases
        if lease.owner == worker.id and lease.scope == worker.scope
    )
    parts: list[str] = []
    for number in numbers:
        last = parts[-1].rpartition("-")[2] if parts else ""
        if parts and number == int(last) + 1:
            parts[-1] = f"{parts[-1].partition('-')[0]}-{number}"
        else:
            parts.append(str(number))
    return ", ".join(parts)
