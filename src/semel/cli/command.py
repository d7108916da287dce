"""The options that commands have in common."""

from __future__ import annotations

import getpass
import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from semel.cli.target import Target
from semel.cli.terminal import Terminal
from semel.cli.work import reported

F = TypeVar("F", bound=Callable[..., None])

_DATABASE = (
    "The database, if its URL has no password; else set SEMEL_DATABASE_URL or "
    "SEMEL_DATABASE_URL_FILE."
)
_EVERY = {
    "database": Annotated[str | None, typer.Option("--database", metavar="URL", help=_DATABASE)],
    "hub": Annotated[
        str | None,
        typer.Option(
            "--hub", metavar="MODULE:NAME", help="Take the database of this hub (or SEMEL_HUB)."
        ),
    ],
    "as_json": Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")],
}
_ACTING = {
    "actor": Annotated[
        str | None,
        typer.Option(help="Who does it, for the audit (or SEMEL_ACTOR; else the login name)."),
    ],
}
_RISKY = {
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")],
    "yes": Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")],
}


def command(
    app: typer.Typer, name: str | None = None, *, acts: bool = False, risky: bool = False
) -> Callable[[F], F]:
    """Add a command; its function takes the `Terminal`, then its own options.

    One that *acts* is written down under the actor's name; a *risky* one asks first.
    """
    shared = {**(_RISKY if risky else {}), **(_ACTING if acts or risky else {}), **_EVERY}

    def add(function: F) -> F:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        @wraps(function)
        def call(**given: Any) -> None:
            common = {key: given.pop(key, None) for key in (*_EVERY, *_ACTING, *_RISKY)}
            with reported():
                terminal = Terminal(
                    Target(common["database"], common["hub"]),
                    as_json=common["as_json"],
                    actor=actor(common["actor"]),
                    yes=bool(common["yes"]),
                    dry_run=bool(common["dry_run"]),
                )
                function(terminal, **given)

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own, *(_parameter(key, kind) for key, kind in shared.items())]
        )
        call.__annotations__ = {}
        del call.__wrapped__
        app.command(name)(call)
        return function

    return add


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    default = False if kind.__origin__ is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def actor(given: str | None) -> str:
    """Return who is acting."""
    named = given or os.environ.get("SEMEL_ACTOR")
    if named:
        return named
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"  # a container's user without a name
