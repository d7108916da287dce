"""Which routes a middleware protects, by their templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from semel.asgi.policy import IdempotencyPolicy
from semel.errors import ConfigurationError

_PARAMETER = re.compile(r"\{[A-Za-z_]\w*(?::(\w+))?\}")


class Routes:
    """Templates such as `/orders/{order_id}/payments`, each with its policy."""

    def __init__(
        self, routes: Iterable[str] | Mapping[str, IdempotencyPolicy], policy: IdempotencyPolicy
    ) -> None:
        if isinstance(routes, str):
            raise ConfigurationError(f"routes is a list of templates: routes=[{routes!r}]")
        given = routes if isinstance(routes, Mapping) else dict.fromkeys(routes, policy)
        self._routes = [(_pattern(template), template, own) for template, own in given.items()]

    def __bool__(self) -> bool:
        return bool(self._routes)

    def match(self, path: str) -> tuple[str, IdempotencyPolicy] | None:
        """Return the first template that matches *path*, with its policy."""
        for pattern, template, policy in self._routes:
            if pattern.fullmatch(path):
                return template, policy
        return None


def _pattern(template: str) -> re.Pattern[str]:
    if not template.startswith("/"):
        raise ConfigurationError(f"a route begins with a slash: {template!r} does not")
    parts, end = [], 0
    for parameter in _PARAMETER.finditer(template):
        parts.append(re.escape(template[end : parameter.start()]))
        parts.append(".*" if parameter[1] == "path" else "[^/]+")
        end = parameter.end()
    rest = template[end:]
    if "{" in rest or "}" in rest:
        raise ConfigurationError(f"this is no route template: {template!r}")
    return re.compile("".join(parts) + re.escape(rest), re.DOTALL)
