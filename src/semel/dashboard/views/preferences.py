"""Language and theme, kept in the visitor's own cookies."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from semel.dashboard.calls import Call
from semel.dashboard.rendering import THEMES
from semel.dashboard.texts import LANGUAGES
from semel.dashboard.views.base import Body, Deed, Rights, View

_CHOICES = {"language": tuple(LANGUAGES), "theme": THEMES}


async def _rights(_call: Call, _body: Body) -> Rights:
    return []  # whoever came in may choose for themselves


async def _choose(call: Call, body: Body) -> dict[str, str]:
    chosen = {name: body[name] for name in _CHOICES if name in body}
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            raise HTTPException(400, f"{name} is one of {', '.join(_CHOICES[name])}.")
        call.cookies[f"semel_{name}"] = value
    return chosen


VIEWS: tuple[View, ...] = ()
DEEDS = (Deed(path="/api/preferences", rights=_rights, do=_choose),)
