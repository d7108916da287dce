"""`semel db`: the tables."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from semel.cli.work import run_async
from semel.sqlalchemy.storage import SqlAlchemyStorage

app = typer.Typer(help="Create and check semel's tables.", no_args_is_help=True)
_console = Console()

Url = Annotated[
    str,
    typer.Option(
        envvar="SEMEL_DATABASE_URL",
        help="The database. Better in the environment: arguments are visible to others.",
        show_default=False,
        show_envvar=True,
    ),
]


@app.command()
def create(*, url: Url) -> None:
    """Create the tables that do not exist."""

    async def work() -> None:
        async with SqlAlchemyStorage(url) as storage:
            await storage.initialize()
            await storage.ping()

    run_async(work())
    _console.print("semel's tables are there")


@app.command()
def check(*, url: Url) -> None:
    """Check that the tables are complete, of this version, and on a server that keeps promises."""

    async def work() -> None:
        async with SqlAlchemyStorage(url) as storage:
            await storage.check()

    run_async(work())
    _console.print("semel's tables are in order")
