"""Who may do what, for which tenant."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response


class Action(StrEnum):
    """What can be allowed. `view` shows no payloads, headers or stacks."""

    VIEW = "view"
    VIEW_PAYLOAD = "view_payload"
    REQUEUE = "requeue"
    EDIT = "edit"
    REPLAY = "replay"
    DELETE = "delete"
    PAUSE = "pause"


VIEWER = frozenset({Action.VIEW})
READER = frozenset({Action.VIEW, Action.VIEW_PAYLOAD})
OPERATOR = frozenset({Action.VIEW, Action.REQUEUE, Action.REPLAY, Action.PAUSE})
ADMIN = frozenset(Action)
ROLES = {"viewer": VIEWER, "reader": READER, "operator": OPERATOR, "admin": ADMIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whoever asks. *tenants* None: all of them, and what belongs to none (projectors, audit).

    *bearer*: known by a token that no browser sends by itself, so that requests of other sites
    cannot carry it.
    """

    name: str
    actions: frozenset[Action] = VIEWER
    tenants: frozenset[str] | None = None
    bearer: bool = False


class DashboardAuth(Protocol):
    """Decides about every request; both methods may be coroutines.

    Never look at `request.url`, whose host the client chooses: `request.scope["path"]` is the path.
    """

    def authenticate(
        self, request: Request
    ) -> Principal | Response | Awaitable[Principal | Response]:
        """Return who it is, or the answer that refuses, such as a 401 or a redirect."""

    def authorize(
        self, principal: Principal, action: Action, tenant: str | None
    ) -> bool | Awaitable[bool]:
        """Tell whether *principal* may; *tenant* None means: for all of them."""


class Granted:
    """Authorises by what the principal carries."""

    def authorize(self, principal: Principal, action: Action, tenant: str | None) -> bool:
        """Tell whether the principal's actions and tenants include these."""
        if action not in principal.actions:
            return False
        return principal.tenants is None or (tenant is not None and tenant in principal.tenants)


class Anonymous(Granted):
    """Everybody is the same viewer; only behind `insecure_allow_anonymous`."""

    def authenticate(self, request: Request) -> Principal:
        """Return the one there is."""
        return Principal(name="anonymous")


class ReadOnly:
    """Takes everything but looking away from what another one allows."""

    def __init__(self, auth: DashboardAuth) -> None:
        self._auth = auth

    def authenticate(
        self, request: Request
    ) -> Principal | Response | Awaitable[Principal | Response]:
        """Ask the other one."""
        return self._auth.authenticate(request)

    def authorize(
        self, principal: Principal, action: Action, tenant: str | None
    ) -> bool | Awaitable[bool]:
        """Ask the other one about looking; refuse the rest."""
        return action in READER and self._auth.authorize(principal, action, tenant)
