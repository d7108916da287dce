"""The request's correlation id and trace go along with every event that it causes."""

from __future__ import annotations

import re
from uuid import uuid4

from semel.asgi.http import ASGIApp, Message, Receive, Scope, Send, single, values
from semel.context import carry

_CORRELATION = re.compile(r"[A-Za-z0-9_.:/@=+-]{1,128}\Z")
_TRACE = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z"
)
_STATE = re.compile(r"[\x20-\x7e]{1,512}\Z")


class RequestContextMiddleware:
    """Carries correlation id and W3C trace context of a request into the events added in it.

    The correlation id is the request's *header*, else the id of its trace, else a new one; the
    answer names it under the same header. Whatever is not well-formed is not taken over, and
    `baggage` never is. Tasks that the request starts carry the same.
    """

    def __init__(self, app: ASGIApp, *, header: str = "X-Correlation-ID") -> None:
        self.app = app
        self._name = header.lower().encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application in the request's context."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        metadata = request_metadata(scope, self._name)
        stamp = (self._name, metadata["correlation_id"].encode("ascii"))

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [pair for pair in message.get("headers", ()) if pair[0].lower() != stamp[0]]
                message = {**message, "headers": [*own, stamp]}
            await send(message)

        with carry(metadata):
            await self.app(scope, receive, stamped)


def request_metadata(scope: Scope, name: bytes = b"x-correlation-id") -> dict[str, str]:
    """Return the metadata that a request gives to its events."""
    metadata: dict[str, str] = {}
    trace = _TRACE.match(single(scope, b"traceparent") or "")
    if trace is not None:
        metadata["traceparent"] = trace[0]
        state = ",".join(values(scope, b"tracestate"))
        if _STATE.match(state):
            metadata["tracestate"] = state
    given = single(scope, name) or ""
    if not _CORRELATION.match(given):
        given = trace[1] if trace is not None else str(uuid4())
    metadata["correlation_id"] = given
    return metadata
