"""`semel pause` and `semel resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.terminal import Terminal

if TYPE_CHECKING:
    from semel.sqlalchemy.storage import SqlAlchemyStorage

Topic = Annotated[str | None, typer.Option(help="Only this topic.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    command(app, acts=True)(pause)
    command(app, acts=True)(resume)


def pause(
    terminal: Terminal,
    *,
    topic: Topic = None,
    tenant: Tenant = None,
    reason: Annotated[str | None, typer.Option(help="Why, for those who see it.")] = None,
) -> None:
    """Hold back everything, a topic or a tenant, until it is resumed; survives restarts."""

    async def work(storage: SqlAlchemyStorage) -> None:
        await storage.outbox.pause(
            topic=topic, tenant_id=tenant, reason=reason, actor=terminal.actor
        )

    terminal.run(work)
    shape = {"paused": True, "topic": topic, "tenant_id": tenant, "reason": reason}
    terminal.show(shape, f"paused: {_named(topic, tenant)}; projectors stop within a heartbeat")


def resume(terminal: Terminal, *, topic: Topic = None, tenant: Tenant = None) -> None:
    """End a pause; what it held back goes out in order."""

    async def work(storage: SqlAlchemyStorage) -> bool:
        return await storage.outbox.resume(topic=topic, tenant_id=tenant, actor=terminal.actor)

    resumed = terminal.run(work)
    what = _named(topic, tenant)
    terminal.show(
        {"resumed": resumed, "topic": topic, "tenant_id": tenant},
        f"resumed: {what}" if resumed else f"{what} was not paused; `semel status` lists pauses",
    )
    if not resumed:
        raise typer.Exit(Exit.PROBLEM)


def _named(topic: str | None, tenant: str | None) -> str:
    if topic is not None:
        return f"topic {topic}"
    return "everything" if tenant is None else f"tenant {tenant}"
