"""Pages from templates; everything that is shown is text unless it was made here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from semel import __version__
from semel.dashboard.texts import LANGUAGES, SCRIPT_TEXTS, Texts

if TYPE_CHECKING:
    from semel.dashboard.calls import Call

HERE = Path(__file__).parent
NONE = "\N{EN DASH}"
THEMES = ("auto", "light", "dark")
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_STATES = {
    "NEW": "info",
    "PUBLISHING": "busy",
    "SENT": "good",
    "FAILED": "warn",
    "DEAD": "bad",
    "RECEIVED": "info",
    "PROCESSED": "good",
    "PARKED": "warn",
    "STARTED": "busy",
    "COMMITTED": "good",
    "COMPLETED": "good",
    "running": "busy",
    "finished": "good",
    "cancelled": "warn",
    "failed": "bad",
    "alive": "good",
    "silent": "bad",
    "healthy": "good",
    "unhealthy": "bad",
}

_environment = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["parts"] = _environment.get_template("parts.html").module


def page(call: Call, template: str, data: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
    """Return a page."""
    root = call.request.scope.get("root_path", "").rstrip("/")
    t = call.texts
    path = call.dashboard.path_of(call.request.scope)

    def link(to: str, **parameters: Any) -> str:
        own = {"tenant": call.tenant} if call.principal.tenants is None or call.tenant else {}
        chosen = own | parameters
        query = urlencode({k: v for k, v in chosen.items() if v not in (None, "")})
        return f"{root}{to}" + (f"?{query}" if query else "")

    def here(**parameters: Any) -> str:
        given = dict(call.request.query_params) | parameters
        return link(path, **given)

    def ago(value: str | datetime | None) -> Markup:
        return _ago(value, t)

    theme = call.request.cookies.get("semel_theme", "auto")
    body = _environment.get_template(template).render(
        **data,
        call=call,
        t=t,
        root=root,
        path=path,
        link=link,
        here=here,
        ago=ago,
        span=span,
        number=number,
        state=_state,
        pretty=pretty,
        as_json=as_json,
        languages=LANGUAGES,
        theme=theme if theme in THEMES else "auto",
        version=__version__,
        script_texts=as_json({text: t(text) for text in SCRIPT_TEXTS}),
        rights=call.rights,
        tenant=call.tenant,
        hub_name=call.hub.name,
        query=call.request.query_params,
    )
    return HTMLResponse(body, status)


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def span(seconds: float | None) -> str:
    """Return a time span as people say it."""
    if seconds is None:
        return NONE
    for size, unit in _SPANS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 10 or (seconds and isinstance(seconds, int)):
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def pretty(value: Any) -> str:
    """Return a JSON value as text to read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def as_json(value: Any) -> str:
    """Return a JSON value for a data attribute."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _ago(value: str | datetime | None, t: Texts) -> Markup:
    if value is None:
        return Markup('<span class="none">{}</span>').format(NONE)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    moment = moment.astimezone(UTC)
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if abs(seconds) < 1:
        text = t("just now")
    elif seconds >= 0:
        text = t("{span} ago", span=span(int(seconds)))
    else:
        text = t("in {span}", span=span(int(-seconds)))
    exact = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(), exact, text
    )


def _state(value: str, text: str | None = None) -> Markup:
    kind = _STATES.get(value, "info")
    return Markup('<span class="state {}">{}</span>').format(kind, text or value)
