"""The request's body, read for comparison and handed on, and what makes two requests the same."""

from __future__ import annotations

import hashlib
import re
from collections import deque

from semel.asgi.http import Message, Receive, Scope, single

_BOUNDARY = re.compile(r'boundary="?([^\s";,]+)"?', re.IGNORECASE)


class RequestBody:
    """Passes the request on, and remembers its body up to *limit* bytes."""

    def __init__(self, receive: Receive, *, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._ahead: deque[Message] = deque()
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False
        self.complete = False

    @property
    def too_large(self) -> bool:
        """Whether there is more than can be remembered."""
        return self._size > self._limit

    async def receive(self) -> Message:
        """Be the application's `receive`."""
        if self._ahead:
            return self._ahead.popleft()
        return self._note(await self._receive())

    async def read(self) -> bytes:
        """Return the body, whoever has read it; what the application has not read waits for it."""
        while not self._ended and not self.too_large:
            self._ahead.append(self._note(await self._receive()))
        return b"".join(self._parts)

    def _note(self, message: Message) -> Message:
        if self._ended:
            return message
        if message["type"] != "http.request":
            self._ended = True  # the client has gone
            return message
        part = message.get("body", b"")
        self._size += len(part)
        if self.too_large:
            self._parts.clear()
        else:
            self._parts.append(part)
        self._ended = self.complete = not message.get("more_body", False)
        return message


def fingerprint(scope: Scope, body: bytes) -> str:
    """Return what makes two requests the same: method, path, query, type and bytes of the body.

    The boundary of a multipart body is made up anew each time, and does not count.
    """
    kind = single(scope, b"content-type") or ""
    boundary = _BOUNDARY.search(kind) if kind.lower().startswith("multipart/") else None
    if boundary is not None:
        kind = kind.partition(";")[0]
        body = body.replace(b"--" + boundary[1].encode("latin-1"), b"--")
    digest = hashlib.sha256()
    for part in (
        scope["method"].encode(),
        scope["path"].encode("utf-8", "surrogatepass"),
        scope.get("query_string", b""),
        kind.encode("latin-1"),
        body,
    ):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()
