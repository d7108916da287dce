"""One request to the dashboard: who asks, for which tenant, in which language."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from semel.dashboard.access import Action, Principal
from semel.dashboard.guard import PRINCIPAL
from semel.dashboard.texts import LANGUAGES, Texts, texts
from semel.envelope import check_name, check_tenant
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dashboard.app import Dashboard

E = TypeVar("E", bound=StrEnum)

MAX_BODY = 2 * 1024 * 1024
_UNITS = {"m": 60, "h": 3600, "d": 86_400}


class Call:
    """What views get."""

    def __init__(self, request: Request, dashboard: Dashboard) -> None:
        self.request = request
        self.dashboard = dashboard
        self.hub = dashboard.hub
        self.storage = dashboard.hub.storage
        self.principal: Principal = request.scope[PRINCIPAL]
        self.tenant: str | None = None
        self.rights: dict[str, bool] = {}
        self.cookies: dict[str, str] = {}

    async def may(self, action: Action, tenant: str | None) -> bool:
        """Tell whether whoever asks may do this for *tenant*; None: for all of them."""
        answer = self.dashboard.auth.authorize(self.principal, action, tenant)
        return (await answer if inspect.isawaitable(answer) else answer) is True

    async def need(self, action: Action, tenant: str | None) -> None:
        """Refuse whoever may not."""
        if not await self.may(action, tenant):
            raise HTTPException(403, "You may not do this.")

    async def show(self, tenant: str) -> None:
        """Refuse whoever may not see this tenant's rows, as if they did not exist."""
        if not await self.may(Action.VIEW, tenant):
            raise missing()

    async def enter(self, action: Action, *, whole: bool) -> None:
        """Find the tenant that the call is about, and refuse whoever may not."""
        if whole:
            await self.need(action, None)
        else:
            self.tenant = await self._tenant(action)
            await self.need(action, self.tenant)
        self.rights = {each.value: await self.may(each, self.tenant) for each in Action}
        self.rights["whole"] = await self.may(Action.VIEW, None)

    async def _tenant(self, action: Action) -> str | None:
        given = self.text("tenant")
        if given is not None:
            return check_tenant(given)
        tenants = self.principal.tenants
        if tenants is None or await self.may(action, None):
            return None
        if not tenants:
            raise HTTPException(403, "No tenant is open to you.")
        return min(tenants)

    @property
    def language(self) -> str:
        """The language of the answer: chosen, else the browser's, else English."""
        chosen = self.request.cookies.get("semel_language", "")
        if chosen in LANGUAGES:
            return chosen
        for part in self.request.headers.get("accept-language", "")[:200].split(","):
            found = part.partition(";")[0].strip().lower().partition("-")[0]
            if found in LANGUAGES:
                return found
        return "en"

    @property
    def texts(self) -> Texts:
        """Translate."""
        return texts(self.language)

    def text(self, name: str) -> str | None:
        """Return a parameter of the query; None if it is empty or not there."""
        value = self.request.query_params.get(name, "").strip()
        return check_name(name, value) if value else None

    def choice(self, name: str, kind: type[E]) -> E | None:
        """Return a parameter that is one of some words."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(kind)
            raise HTTPException(400, f"{name} is one of {words}.") from None

    def number(self, name: str, default: int | None, *, most: int = 2**63 - 1) -> int | None:
        """Return a parameter that is a number from 1 to *most*."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or len(value) > 19:
            raise HTTPException(400, f"{name} is a number.")
        return max(1, min(int(value), most))

    @property
    def limit(self) -> int:
        """How many rows a page has."""
        return self.number("limit", 50, most=200) or 50

    def moment(self, name: str) -> datetime | None:
        """Return a parameter that is an instant, or how long ago: `90m`, `24h`, `7d`."""
        value = self.text(name)
        if value is None:
            return None
        amount, unit = value[:-1], value[-1:]
        if unit in _UNITS and amount.isascii() and amount.isdigit() and len(amount) < 6:
            return datetime.now(UTC) - timedelta(seconds=int(amount) * _UNITS[unit])
        try:
            found = datetime.fromisoformat(value)
            return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
        except (ValueError, OverflowError):
            text = f"{name} is an instant such as 2026-01-31T12:00, or how long ago such as 24h."
            raise HTTPException(400, text) from None

    async def body(self) -> Mapping[str, Any]:
        """Return the JSON object that was sent."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, "Send JSON.")
        data = b""
        async for chunk in self.request.stream():
            data += chunk
            if len(data) > MAX_BODY:
                raise HTTPException(413, "This is too long.")
        try:
            found = json.loads(data or b"{}")
        except (ValueError, RecursionError):
            raise HTTPException(400, "This is not JSON.") from None
        if not isinstance(found, dict):
            raise HTTPException(400, "Send a JSON object.")
        return found


def optional(body: Mapping[str, Any], name: str) -> str | None:
    """Return a text of the body; None if it is empty or not there."""
    value = body.get(name)
    if value in (None, ""):
        return None
    try:
        return check_name(name, value)
    except SemelError as error:
        raise HTTPException(400, str(error)) from None


def missing() -> HTTPException:
    """Return the answer to what is not there, or not for you."""
    return HTTPException(404, "There is nothing here, or nothing that you may see.")
