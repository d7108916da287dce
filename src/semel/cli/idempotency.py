"""`semel idempotency`: keys of API calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from semel.cli import shapes
from semel.cli.command import command
from semel.cli.exits import Exit
from semel.cli.pages import Limit
from semel.cli.terminal import Terminal, pairs, table
from semel.cli.work import fail
from semel.states import IdempotencyKey, IdempotencyState

if TYPE_CHECKING:
    from semel.operations import Page
    from semel.sqlalchemy.storage import SqlAlchemyStorage
    from semel.sqlalchemy.tables import IdempotencyRecord

app = typer.Typer(help="Look at the keys of API calls.", no_args_is_help=True)

_HASH = re.compile(r"[0-9a-f]{64}")

Key = Annotated[
    str, typer.Argument(help="The client's key, or its hash from the list.", show_default=False)
]
Principal = Annotated[str, typer.Option(help="Whose key it is.", show_default=False)]
Method = Annotated[str, typer.Option(help="The call's method.")]
Route = Annotated[str, typer.Option(help="The call's route.", show_default=False)]
Tenant = Annotated[str, typer.Option(help="The tenant.")]


@command(app, "list")
def list_(
    terminal: Terminal,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    principal: Annotated[str | None, typer.Option(help="Only this principal.")] = None,
    route: Annotated[str | None, typer.Option(help="Only this route.")] = None,
    state: Annotated[
        IdempotencyState | None, typer.Option(case_sensitive=False, help="Only in this state.")
    ] = None,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option(help="Go on here, as the last page said.")] = None,
) -> None:
    """List keys, newest first."""

    async def work(storage: SqlAlchemyStorage) -> Page[IdempotencyRecord, str]:
        return await storage.idempotency.search(
            tenant_id=tenant,
            principal=principal,
            route=route,
            state=state,
            before=before,
            limit=limit,
        )

    rows = terminal.run(work)
    terminal.show(
        {"items": [shapes.call(row) for row in rows], "next": rows.next},
        table(
            ["key", "state", "method", "route", "principal", "answer", "created", "hash"],
            [
                (
                    f"{row.key_prefix}…",
                    row.state,
                    row.method,
                    row.route,
                    row.principal,
                    None if row.status_code is None else str(row.status_code),
                    row.created_at,
                    row.key_hash,
                )
                for row in rows
            ],
        ),
    )
    if not terminal.as_json:
        terminal.say(f"more: --before '{rows.next}'" if rows.next else f"{len(rows)} keys")


@command(app)
def show(
    terminal: Terminal,
    key: Key,
    *,
    principal: Principal,
    route: Route,
    method: Method = "POST",
    tenant: Tenant = "default",
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the answer, too: it may be private.")
    ] = False,
) -> None:
    """Show how far a call came."""
    scoped = _scoped(key, principal, route, method, tenant)

    async def work(storage: SqlAlchemyStorage) -> IdempotencyRecord | None:
        return await storage.idempotency.get(scoped)

    found = terminal.run(work)
    if found is None:
        _unknown()
    shape = shapes.call(found, payload=payload)
    terminal.show(shape, pairs(shape))


@command(app, risky=True)
def release(
    terminal: Terminal,
    key: Key,
    *,
    principal: Principal,
    route: Route,
    method: Method = "POST",
    tenant: Tenant = "default",
) -> None:
    """Forget a key, so that the call may be made again: its effects would happen again, too."""
    scoped = _scoped(key, principal, route, method, tenant)

    async def look(storage: SqlAlchemyStorage) -> bool:
        return await storage.idempotency.get(scoped) is not None

    async def work(storage: SqlAlchemyStorage) -> bool:
        return await storage.idempotency.release(scoped, actor=terminal.actor)

    allowed = terminal.may(f"forget this key of {principal} for {method} {route}")
    if not terminal.run(work if allowed else look):
        _unknown()
    shape = {"released": allowed, "dry_run": terminal.dry_run, "key_hash": scoped.key_hash}
    terminal.show(shape, "released" if allowed else "it is there")


def _scoped(key: str, principal: str, route: str, method: str, tenant: str) -> IdempotencyKey:
    from semel.idempotency.keys import scoped_key

    if _HASH.fullmatch(key):
        return IdempotencyKey(
            tenant_id=tenant, principal=principal, method=method, route=route, key_hash=key
        )
    return scoped_key(key, method=method, route=route, principal=principal, tenant_id=tenant)


def _unknown() -> NoReturn:
    fail("there is no such key; `semel idempotency list` shows what is there", Exit.PROBLEM)
