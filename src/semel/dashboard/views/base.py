"""What a page is, and what an action is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.dashboard.access import Action
from semel.dashboard.calls import Call

Body = Mapping[str, Any]
#: What an action needs: each for a tenant, or for all of them.
Rights = Sequence[tuple[Action, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page, and under /api the same data as JSON. *whole*: it is about all tenants."""

    path: str
    template: str
    read: Callable[[Call], Awaitable[Any]]
    action: Action = Action.VIEW
    whole: bool = False

    @property
    def api_path(self) -> str:
        """Where programs find it."""
        return f"/api{'/overview' if self.path == '/' else self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that is done; *rights* says what whoever does it needs, before it is done."""

    path: str
    rights: Callable[[Call, Body], Awaitable[Rights]]
    do: Callable[[Call, Body], Awaitable[Any]]
