"""A request as a server hands it to an application; also for peers that have no semel."""

from __future__ import annotations

import json
from typing import Any

BODY = json.dumps({"text": "x" * 200}).encode()


async def request(app: Any, path: str, key: str | None = None) -> None:
    """Post the body, and insist on a success."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("bench", 80),
    }
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    assert statuses == [200], statuses
