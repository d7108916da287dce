"""`semel db`: the tables."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command
from semel.cli.terminal import Terminal, print_json

if TYPE_CHECKING:
    from semel.sqlalchemy.storage import SqlAlchemyStorage

app = typer.Typer(help="Create, upgrade and check semel's tables.", no_args_is_help=True)


@command(app)
def create(terminal: Terminal) -> None:
    """Create the tables that do not exist."""

    async def work(storage: SqlAlchemyStorage) -> None:
        async with storage:
            await storage.initialize()
            await storage.ping()

    asyncio.run(work(terminal.target.storage()))
    terminal.show({"created": True}, "semel's tables are there")


@command(app)
def upgrade(terminal: Terminal) -> None:
    """Create the tables, or bring those of an earlier release up to date, by Alembic."""

    async def work(storage: SqlAlchemyStorage) -> None:
        async with storage:
            await storage.upgrade()
            await storage.check()

    asyncio.run(work(terminal.target.storage()))
    terminal.show({"upgraded": True}, "semel's tables are up to date")


@command(app)
def check(terminal: Terminal) -> None:
    """Check that the tables are complete, of this version, and on a server that keeps promises."""

    async def work(storage: SqlAlchemyStorage) -> None:
        async with storage:
            await storage.check()

    asyncio.run(work(terminal.target.storage()))
    terminal.show({"ok": True}, "semel's tables are in order")


@app.command()
def sql(
    dialect: Annotated[
        str, typer.Argument(help="postgresql, mysql, mariadb or sqlite", show_default=False)
    ],
    *,
    since: Annotated[int, typer.Option(help="The version that the tables have; 0 for none.")] = 0,
    row_level_security: Annotated[
        bool, typer.Option(help="Print what keeps tenants apart instead of the tables.")
    ] = False,
    tenant_role: Annotated[
        str | None, typer.Option(help="The role of processes that work for one tenant at a time.")
    ] = None,
    relay_role: Annotated[
        str | None, typer.Option(help="The role of projectors, operators and upgrades.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Print the SQL that `semel db upgrade` would execute; needs no database."""
    from semel.cli.work import reported

    with reported():
        if row_level_security:
            from semel.sqlalchemy import tenants

            script = tenants.row_level_security(
                dialect, tenant_role=tenant_role, relay_role=relay_role
            )
        else:
            from semel.sqlalchemy import migrations

            script = migrations.render(dialect, since=since)
    if as_json:
        print_json({"sql": script})
    else:
        typer.echo(script, nl=False)
