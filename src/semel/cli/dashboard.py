"""`semel dashboard`: the dashboard as a program of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli import logs
from semel.cli.command import command
from semel.cli.http import listen
from semel.cli.target import address
from semel.cli.terminal import Terminal
from semel.errors import ConfigurationError, missing_extra

if TYPE_CHECKING:
    from semel.dashboard import Account, Dashboard
    from semel.hub import Hub

_USERS = "SEMEL_DASHBOARD_USERS"
_HINT = (
    f"who may come in? Set {_USERS}, or {_USERS}_FILE with the name of a file, to lines such as "
    "`ann operator scrypt:...` (and tenants behind it, if not all); `semel dashboard "
    "--hash-password` makes the third word. --insecure-allow-anonymous lets everybody look"
)


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    command(app)(dashboard)


def dashboard(
    terminal: Terminal,
    *,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where it answers.")
    ] = "127.0.0.1:8080",
    host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name under which it is reached."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nobody may act.")] = False,
    anonymous: Annotated[
        bool,
        typer.Option("--insecure-allow-anonymous", help="Everybody who reaches the port may look."),
    ] = False,
    make_hash: Annotated[
        bool, typer.Option("--hash-password", help="Ask for a password, print its hash, and end.")
    ] = False,
) -> None:
    """Serve the dashboard: outbox, dead letters, inbox, projectors, and what to do about them.

    Users are in SEMEL_DASHBOARD_USERS(_FILE), one per line: name, role (viewer, reader, operator,
    admin), hash of the password, and the tenants, if not all of them.
    """
    try:
        from semel.dashboard import create_dashboard, hash_password
    except ImportError as error:
        raise ConfigurationError(missing_extra("`semel dashboard`", "dashboard")) from error

    if make_hash:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        terminal.show({"hash": (made := hash_password(password))}, made)
        return
    from semel.dashboard import BasicAuth
    from semel.dashboard.app import LOCAL

    text = address(_USERS, None, _USERS)
    if text is None and not anonymous:
        raise ConfigurationError(_HINT)
    own = http.rpartition(":")[0].strip("[]")
    app = create_dashboard(
        _hub(terminal),
        auth=None if anonymous else BasicAuth(accounts(text or "")),
        insecure_allow_anonymous=anonymous,
        hosts=[*LOCAL, own, *(host or ())],
        read_only=read_only or None,
    )
    logs.tell_semel()
    asyncio.run(_serve(app, http, terminal))


def accounts(text: str) -> list[Account]:
    """Read users, one per line; empty lines and those with # in front do not count."""
    from semel.dashboard import Account
    from semel.dashboard.access import ROLES

    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3 or words[1] not in ROLES:
            # Not the line itself: it has a hash in it.
            raise ConfigurationError(
                f"line {number} of {_USERS} is not: name, role ({', '.join(ROLES)}), hash, and "
                "tenants if any"
            )
        name, role, secret, *tenants = words
        found.append(
            Account(
                name=name,
                secret_hash=secret,
                actions=ROLES[role],
                tenants=frozenset(tenants) if tenants else None,
            )
        )
    return found


def _hub(terminal: Terminal) -> Hub:
    from semel.hub import Hub

    found = terminal.target.find_hub()
    if found is not None:
        return found
    return Hub("semel", storage=terminal.target.storage())


async def _serve(app: Dashboard, http: str, terminal: Terminal) -> None:
    import uvicorn

    await app.hub.storage.ping()
    listener = listen(http)
    terminal.say(f"the dashboard of {app.hub.name} is at http://{http}; Ctrl-C ends it")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    try:
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        await app.hub.storage.close()
