"""The little of HTTP that pure ASGI applications need: types, headers, paths, JSON answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def values(scope: Scope, name: bytes) -> list[str]:
    """Return what the request says under the header *name*, which is in lower case."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def single(scope: Scope, name: bytes) -> str | None:
    """Return the header's value if the request has it exactly once."""
    found = values(scope, name)
    return found[0] if len(found) == 1 else None


def route(scope: Scope) -> str:
    """Return the path below the place where the application is mounted."""
    # Never from the URL, whose host the client chooses.
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path


async def answer_json(
    send: Send,
    status: int,
    document: Any,
    *,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
    body: bool = True,
) -> None:
    """Send a JSON answer that nobody may cache; without *body*, as HEAD asks for, its head."""
    data = json.dumps(document, separators=(",", ":")).encode()
    given = {
        "content-type": content_type,
        "content-length": str(len(data)),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **(headers or {}),
    }
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": data if body else b""})


async def problem(
    send: Send, status: int, title: str, *, headers: Mapping[str, str] | None = None
) -> None:
    """Send an `application/problem+json` answer."""
    document = {"type": "about:blank", "title": title, "status": status}
    await answer_json(
        send, status, document, headers=headers, content_type="application/problem+json"
    )
