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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Print the statements that `semel db create` would execute; needs no database."""
    from semel.cli.work import reported
    from semel.sqlalchemy.ddl import schema_sql

    with reported():
        statements = list(schema_sql(dialect))
    if as_json:
        print_json(statements)
        return
    for statement in statements:
        typer.echo(f"{statement};\n")
