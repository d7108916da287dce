"""The options that commands have in common."""

from __future__ import annotations

import getpass
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
_HUB = "Take the database of this hub (or SEMEL_HUB)."
_ACTOR = "Who does it, for the audit (or SEMEL_ACTOR; else the login name)."


@dataclass(frozen=True, slots=True)
class Group:
    """Options that become one argument: *build* gets them, the function gets what it returns."""

    argument: str
    options: Mapping[str, Any]
    build: Callable[..., Any]


_EVERY = {
    "database": Annotated[str | None, typer.Option("--database", metavar="URL", help=_DATABASE)],
    "hub": Annotated[str | None, typer.Option("--hub", metavar="MODULE:NAME", help=_HUB)],
    "as_json": Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")],
}
_ACTING = {"actor": Annotated[str | None, typer.Option(metavar="NAME", help=_ACTOR)]}
_RISKY = {
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")],
    "yes": Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")],
}


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    acts: bool = False,
    risky: bool = False,
    group: Group | None = None,
) -> Callable[[F], F]:
    """Add a command; its function takes the `Terminal`, then its own options.

    One that *acts* is written down under the actor's name; a *risky* one asks first.
    """
    common = {**(_RISKY if risky else {}), **(_ACTING if acts or risky else {}), **_EVERY}
    groups = [Group("terminal", common, _terminal), *([group] if group else [])]

    def add(function: F) -> F:
        own = list(inspect.signature(function, eval_str=True).parameters.values())
        taken = {item.argument for item in groups}
        parameters = [item for item in own if item.name not in taken]
        for item in reversed(groups):
            parameters += [_parameter(key, kind) for key, kind in item.options.items()]

        @wraps(function)
        def call(**given: Any) -> None:
            with reported():
                for item in groups:
                    options = {key: given.pop(key) for key in item.options}
                    given[item.argument] = item.build(**options)
                function(**given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {}
        del call.__wrapped__
        app.command(name)(call)
        return function

    return add


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    default = False if kind.__origin__ is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _terminal(
    *, database: str | None, hub: str | None, actor: str | None = None, **flags: bool
) -> Terminal:
    return Terminal(Target(database, hub), actor=_actor(actor), **flags)


def _actor(given: str | None) -> str:
    named = given or os.environ.get("SEMEL_ACTOR")
    if named:
        return named
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"  # a container's user without a name
